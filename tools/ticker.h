/* Prints on standard error the current work and how long it has taken, while the caller is busy: a separate thread
 * prints once it has taken more than a second. A terminal shows one line, drawn again and again; other outputs get a
 * line at each change, and every half a minute. */
#pragma once

typedef struct ticker ticker;

ticker *ticker_open(const char *doing);
/* Sets the current work; cut after 200 bytes. Any thread may call it. */
void ticker_say(ticker *t, const char *doing);
/* Removes its line from a terminal. Accepts NULL. */
void ticker_close(ticker *t);
