/* Locals that are released where their scope ends, however it is left (GCC's and Clang's attribute `cleanup`, as
 * systemd and GLib use it). JSON has jansson's own: json_auto_t *root.
 *
 *     AUTO_FREE char *path = format_path(folder, name);
 *     AUTO(checkpoint) *from = NULL;
 *     TRY(checkpoint_open(&from, path));        (locals opened so far are released where TRY returns)
 *     *out = TAKE(from);                        (handed to the caller: not released here)
 *
 * Where only the release uses a local (it holds something for the life of the scope), compilers are told so (`unused`).
 * A local is initialised where it is declared, or released uninitialised. They are released in the reverse order of
 * their declarations. Objects that must report their own failure (a file being written, an unpublished save, a
 * collective) are closed by name instead, and the status is returned.
 */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Defines the release of AUTO(type) locals by `close`, which is not called for NULL. A header that declares an opaque
 * type has it once, after its closing function. */
#define AUTO_CLOSES(type, close)                                                                                       \
    static inline void auto_close_##type(type **local)                                                                 \
    {                                                                                                                  \
        if (*local)                                                                                                    \
            close(*local);                                                                                             \
    }
/* Declares a pointer to `type` that is closed at the end of its scope: AUTO(samples) *s = NULL; */
#define AUTO(type) __attribute__((cleanup(auto_close_##type), unused)) type

/* Declares a struct with contents that `release`, called with its address, frees at its scope's end:
 * RELEASED_BY(plan_free) plan p = {0}; */
#define RELEASED_BY(release) __attribute__((cleanup(release), unused))

static inline void auto_free(void *local)
{
    free(*(void **)local);
}
/* Declares a pointer to memory of malloc() that is freed at the end of its scope. */
#define AUTO_FREE __attribute__((cleanup(auto_free), unused))

static inline void auto_close_descriptor(int *local)
{
    int error = errno;
    if (*local >= 0)
        close(*local);
    errno = error;
}
/* Declares a file descriptor, -1 for none, that is closed at the end of its scope; errno stays. Only for reading. */
#define AUTO_CLOSE __attribute__((cleanup(auto_close_descriptor), unused)) int

/* Allow AUTO(FILE) *f for files that are only read, and AUTO(DIR) *folder. */
AUTO_CLOSES(FILE, fclose)
AUTO_CLOSES(DIR, closedir)

/* Returns the value of a local and sets it to NULL: the receiver owns the value. */
#define TAKE(local)                                                                                                    \
    __extension__({                                                                                                    \
        __typeof__(local) taken_ = (local);                                                                            \
        (local) = NULL;                                                                                                \
        taken_;                                                                                                        \
    })
