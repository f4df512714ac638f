#include "memory/outlet.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory/clock.h"

/* ---- lines as objects ------------------------------------------------------------------------------------------- */

/* Returns the bytes of the UTF-8 sequence at `text`, of which `left` bytes are there; 0: it is none. */
static size_t sequence_at(const unsigned char *text, size_t left)
{
    size_t length = *text < 0x80 ? 1 : *text >= 0xF0 ? 4 : *text >= 0xE0 ? 3 : 2;
    if (length > 1 && (*text < 0xC2 || *text > 0xF4 || length > left))
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    if ((*text == 0xE0 && text[1] < 0xA0) || (*text == 0xED && text[1] >= 0xA0) || (*text == 0xF0 && text[1] < 0x90) ||
        (*text == 0xF4 && text[1] >= 0x90))
        return 0;
    return length;
}

/* Writes the text between the quotes of a JSON string. */
static size_t escape(char *out, const char *text, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes;) {
        const unsigned char *at = (const unsigned char *)text + i;
        size_t length = sequence_at(at, bytes - i);
        if (*at == '"' || *at == '\\')
            out[used++] = '\\';
        if (length == 0 || *at == 0)
            out[used++] = '?';
        else if (*at < 0x20)
            used += (size_t)sprintf(out + used, "\\u%04x", *at);
        else
            memcpy(out + used, at, length), used += length;
        i += length ? length : 1;
    }
    return used;
}

/* Removes the logger's prefix, "phalanx: rank 3: warning: ...", and returns the level that it names. */
static const char *take_level(const char **line, size_t *bytes, bool error)
{
    static const char name[] = "phalanx: ", warning[] = "warning: ", rank[] = "rank ";
    const char *at = *line, *end = *line + *bytes;
    if (!error || *bytes < sizeof name - 1 || memcmp(at, name, sizeof name - 1) != 0)
        return "info";
    at += sizeof name - 1;
    if ((size_t)(end - at) > sizeof rank && memcmp(at, rank, sizeof rank - 1) == 0) {
        const char *digits = at + sizeof rank - 1;
        size_t count = strspn(digits, "0123456789");
        if (count > 0 && end - digits > (long)count + 2 && digits[count] == ':' && digits[count + 1] == ' ')
            at = digits + count + 2;
    }
    bool warns = (size_t)(end - at) >= sizeof warning - 1 && memcmp(at, warning, sizeof warning - 1) == 0;
    at += warns ? sizeof warning - 1 : 0;
    *bytes = (size_t)(end - at);
    *line = at;
    return warns ? "warning" : "error";
}

size_t outlet_json(char out[OUTLET_LINE_JSON], const char *line, size_t bytes, bool error, int rank)
{
    static const char stamped[] = "{\"time\": \"";
    size_t used = 0;
    bytes = bytes < OUTLET_LINE ? bytes : OUTLET_LINE;
    if (bytes > sizeof stamped && memcmp(line, stamped, sizeof stamped - 1) == 0) {
        memcpy(out, line, bytes);
        out[bytes] = '\n';
        return bytes + 1;
    }
    const char *level = take_level(&line, &bytes, error);
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    used += (size_t)sprintf(out, "{\"time\": \"%s.%03ldZ\", ", date, now.tv_nsec / 1000000);
    used += (size_t)sprintf(out + used, "\"level\": \"%s\", \"rank\": %d, ", level, rank);
    if (bytes > 1 && line[0] == '{' && line[bytes - 1] == '}') {
        used += (size_t)sprintf(out + used, "\"metrics\": ");
        memcpy(out + used, line, bytes);
        used += bytes;
    } else {
        for (; bytes > 0 && *line == ' '; bytes--) /* removes their indentation on a screen */
            line++;
        used += (size_t)sprintf(out + used, "\"message\": \"");
        used += escape(out + used, line, bytes);
        out[used++] = '"';
    }
    out[used++] = '}';
    out[used++] = '\n';
    return used;
}

/* ---- the buffers ------------------------------------------------------------------------------------------------ */

enum { BUFFER = 64 << 10, CHUNK = 4096 /* a writable pipe takes this many bytes at once */, STREAMS = 2 };

/* The destination of a stream, and a ring of bytes that wait to go there, counted from the beginning. */
typedef struct channel {
    int descriptor;
    char bytes[BUFFER];
    _Atomic uint64_t put, taken;
    uint64_t missing;  /* bytes dropped since the last notice to the reader */
    _Atomic int error; /* errno if the reader has gone; else 0 */
    _Atomic bool deaf; /* last words timed out once: later ones do not wait */
    bool ends;         /* the thread ends when all is taken */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
} channel;

/* Standard output or error, with its unfinished line: a line becomes an object at its end. */
typedef struct stream {
    channel *to;
    bool error;
    char line[OUTLET_LINE];
    size_t length;
} stream;

static struct {
    _Atomic bool open, json;
    channel channel[STREAMS];
    channel *of[STREAMS]; /* channels of standard output and error: one, if both lead to the same place */
    stream streams[STREAMS];
    FILE *before[STREAMS], *now[STREAMS];
    int (*rank)(void); /* rank in lines that are objects */
    _Atomic int64_t dropped;
    _Atomic bool deaf; /* direct writes timed out once: later ones do not wait */
    bool at_exit;
} outlet;

/* ---- into the buffer --------------------------------------------------------------------------------------------- */

static size_t room_of(const channel *c)
{
    return BUFFER - (size_t)(atomic_load(&c->put) - atomic_load(&c->taken));
}

static void add_bytes(channel *c, const char *bytes, size_t count)
{
    size_t at = (size_t)(atomic_load(&c->put) % BUFFER), first = count < BUFFER - at ? count : BUFFER - at;
    memcpy(c->bytes + at, bytes, first);
    memcpy(c->bytes, bytes + first, count - first);
    atomic_fetch_add(&c->put, count);
}

/* Puts a notice of the missing bytes where they are missing. */
static void add_notice(channel *c)
{
    char line[128];
    int length = snprintf(line, sizeof line, "[%llu bytes of output are missing here: they were not read in time]\n",
                          (unsigned long long)c->missing);
    if (room_of(c) < (size_t)length)
        return;
    add_bytes(c, line, (size_t)length);
    c->missing = 0;
}

static void put_bytes(channel *c, const char *bytes, size_t count)
{
    pthread_mutex_lock(&c->lock);
    if (c->missing > 0 && room_of(c) >= BUFFER / 2)
        add_notice(c);
    if (c->missing == 0 && room_of(c) >= count) {
        add_bytes(c, bytes, count);
        pthread_cond_broadcast(&c->changed);
    } else {
        c->missing += count;
        atomic_fetch_add(&outlet.dropped, (int64_t)count);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Passes on the line as an object, unless it is empty. */
static void end_line(stream *s)
{
    char object[OUTLET_LINE_JSON];
    if (s->length > 0)
        put_bytes(s->to, object, outlet_json(object, s->line, s->length, s->error, outlet.rank()));
    s->length = 0;
}

/* A cookie's write, under its stream's lock: 0 is an error. A line that is too long becomes several. */
static ssize_t write_stream(void *cookie, const char *bytes, size_t count)
{
    stream *s = cookie;
    if ((errno = atomic_load(&s->to->error)))
        return 0;
    if (!atomic_load(&outlet.json)) {
        put_bytes(s->to, bytes, count);
        return (ssize_t)count;
    }
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '\n')
            s->line[s->length++] = bytes[i];
        if (bytes[i] == '\n' || s->length == sizeof s->line)
            end_line(s);
    }
    return (ssize_t)count;
}

/* ---- and out of it ----------------------------------------------------------------------------------------------- */

/* Writes the next bytes when the reader takes them; false: it is gone. */
static bool pass_on(channel *c)
{
    uint64_t taken = atomic_load(&c->taken), waiting = atomic_load(&c->put) - taken;
    size_t at = (size_t)(taken % BUFFER), count = waiting < CHUNK ? (size_t)waiting : CHUNK;
    if (count > BUFFER - at)
        count = BUFFER - at;
    ssize_t wrote = write(c->descriptor, c->bytes + at, count);
    if (wrote >= 0)
        atomic_fetch_add(&c->taken, (uint64_t)wrote);
    else if (errno == EAGAIN)
        (void)poll(&(struct pollfd){.fd = c->descriptor, .events = POLLOUT}, 1, -1);
    else if (errno != EINTR)
        atomic_store(&c->error, errno);
    return !atomic_load(&c->error);
}

static void *run(void *argument)
{
    channel *c = argument;
    for (bool there = true; there;) {
        pthread_mutex_lock(&c->lock);
        while (atomic_load(&c->put) == atomic_load(&c->taken) && !c->ends)
            pthread_cond_wait(&c->changed, &c->lock);
        there = atomic_load(&c->put) != atomic_load(&c->taken);
        pthread_mutex_unlock(&c->lock);
        there = there && pass_on(c);
    }
    return NULL;
}

/* Waits until all is taken; false after `seconds` without progress. The caller does not hold the lock. */
static bool drain(const channel *c, double seconds)
{
    uint64_t taken = atomic_load(&c->taken);
    for (double until = clock_seconds() + seconds; !atomic_load(&c->error);) {
        uint64_t now = atomic_load(&c->taken);
        if (now == atomic_load(&c->put))
            return true;
        if (now != taken)
            until = clock_seconds() + seconds;
        taken = now;
        if (clock_seconds() >= until)
            return false;
        clock_nap(0.001);
    }
    return true; /* the reader is gone */
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static bool same_place(int a, int b)
{
    struct stat one, other;
    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino &&
           one.st_rdev == other.st_rdev;
}

/* Starts a thread that blocks all signals: the earlier threads handle them. */
static bool start(channel *c, int descriptor)
{
    sigset_t all, before;
    c->descriptor = descriptor;
    c->ends = false;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&c->thread, NULL, run, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Ends the thread when all is taken; a stuck one ends with the process. Dropped bytes get a last notice. */
static void stop(channel *c, double seconds)
{
    if (!drain(c, seconds))
        return;
    pthread_mutex_lock(&c->lock);
    if (c->missing > 0)
        add_notice(c);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (!drain(c, seconds))
        return;
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
}

static FILE *open_stream(stream *s, channel *to, bool error, int mode)
{
    *s = (stream){.to = to, .error = error};
    FILE *f = fopencookie(s, "w", (cookie_io_functions_t){.write = write_stream});
    if (f)
        setvbuf(f, NULL, mode, BUFSIZ);
    return f;
}

static void close_at_exit(void)
{
    outlet_close(OUTLET_CLOSE_SECONDS);
}

void outlet_open(void)
{
    channel *out = &outlet.channel[0], *error = &outlet.channel[1];
    if (atomic_load(&outlet.open))
        return;
    fflush(stdout);
    fflush(stderr);
    if (!start(out, STDOUT_FILENO))
        return;
    bool one = same_place(STDOUT_FILENO, STDERR_FILENO) || !start(error, STDERR_FILENO);
    outlet.of[0] = out;
    outlet.of[1] = one ? out : error;
    outlet.before[0] = stdout;
    outlet.before[1] = stderr;
    outlet.now[0] = open_stream(&outlet.streams[0], outlet.of[0], false, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    outlet.now[1] = open_stream(&outlet.streams[1], outlet.of[1], true, _IONBF);
    if (!outlet.now[0] || !outlet.now[1])
        return; /* the threads stay idle */
    stdout = outlet.now[0];
    stderr = outlet.now[1];
    if (!outlet.at_exit)
        atexit(close_at_exit);
    outlet.at_exit = true;
    atomic_store(&outlet.open, true);
}

void outlet_close(double seconds)
{
    if (!atomic_load(&outlet.open))
        return;
    for (int i = 0; i < STREAMS; i++) {
        fflush(outlet.now[i]);
        end_line(&outlet.streams[i]);
    }
    atomic_store(&outlet.json, false);
    for (int i = 0; i < STREAMS; i++) {
        if (i == 0 || outlet.of[1] != outlet.of[0])
            stop(outlet.of[i], seconds);
    }
    atomic_store(&outlet.open, false);
    stdout = outlet.before[0];
    stderr = outlet.before[1];
}

void outlet_write_json(int (*rank)(void))
{
    fflush(stdout);
    outlet.rank = rank;
    atomic_store(&outlet.json, atomic_load(&outlet.open));
}

int outlet_descriptor(FILE *of)
{
    for (int i = 0; atomic_load(&outlet.open) && i < STREAMS; i++)
        if (of == outlet.now[i])
            return i ? STDERR_FILENO : STDOUT_FILENO;
    return fileno(of);
}

size_t outlet_room(void)
{
    size_t room = atomic_load(&outlet.open) ? room_of(outlet.of[0]) : BUFFER;
    return room > BUFFER / 4 ? room - BUFFER / 4 : 0; /* leaves the rest for other writers */
}

int64_t outlet_dropped(void)
{
    return atomic_load(&outlet.dropped);
}

/* ---- last words -------------------------------------------------------------------------------------------------- */

void outlet_last_words(const char *text, size_t bytes, double seconds)
{
    char object[OUTLET_LINE_JSON];
    if (atomic_load(&outlet.json)) {
        bytes = outlet_json(object, text, bytes - (bytes > 0 && text[bytes - 1] == '\n'), true, outlet.rank());
        text = object;
    }
    for (int i = 0; atomic_load(&outlet.open) && i < STREAMS; i++)
        if (!drain(outlet.of[i], atomic_load(&outlet.of[i]->deaf) ? 0 : seconds))
            atomic_store(&outlet.of[i]->deaf, true);
    double until = clock_seconds() + (atomic_load(&outlet.deaf) ? 0 : seconds);
    while (bytes > 0) {
        double left = until - clock_seconds();
        struct pollfd reader = {.fd = STDERR_FILENO, .events = POLLOUT};
        int ready = poll(&reader, 1, left > 0 ? (int)(1000 * left) : 0);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0) {
            atomic_store(&outlet.deaf, true);
            return;
        }
        ssize_t wrote = write(STDERR_FILENO, text, bytes < CHUNK ? bytes : CHUNK);
        if (wrote < 0 && errno != EINTR && errno != EAGAIN)
            return;
        text += wrote > 0 ? wrote : 0;
        bytes -= wrote > 0 ? (size_t)wrote : 0;
    }
}
