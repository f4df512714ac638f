/* Says on standard error what is being done, and for how long, while the caller computes and cannot: from a thread of
 * its own, once it has taken more than a second. On a terminal one line is drawn again and again; else a line is
 * printed when what is done changes, and every half a minute. */
#pragma once

typedef struct ticker ticker;

ticker *ticker_open(const char *doing);
/* What is done from now on; cut after 200 bytes. From any thread. */
void ticker_say(ticker *t, const char *doing);
/* Takes its line off a terminal. NULL is none. */
void ticker_close(ticker *t);
