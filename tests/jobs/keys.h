/* What a configuration does, as text that two configurations can be told apart by. Everything happens in this process,
 * on one rank, in the folder `top`.
 *
 * Settings are words "key=value" with spaces between; a later one of the same key counts, "-section." removes the keys
 * that begin so, and TOP/ stands for the folder. */
#pragma once

/* How a key's effect is seen. */
typedef enum keys_observer {
    KEYS_PLANNED, /* `plan --json` and the listing of rank 0, or the line that refuses the configuration */
    KEYS_TRAINED, /* a run's metrics, loss scale and end */
    KEYS_FILES,   /* names of the files that it leaves; of gradients their checksums too */
    KEYS_SCREEN,  /* what it says */
    KEYS_DEVICE,  /* what it asks of a device; with train.device=cuda of one that this program brings (keys_device.c) */
    KEYS_OBSERVERS,
} keys_observer;

/* Data sets data, other and held, a checkpoint of the weights after a step in the run folder `begun`; and the settings
 * that all observations begin with. */
void keys_prepare(const char *top);

/* The text is the caller's. `again`: what is observed is a second run, with the settings of the first and `again`. */
char *keys_observe(const char *top, keys_observer how, const char *settings, const char *again);

/* keys_device.c: what was asked of the device "cuda" since the last call, in words; the caller's. */
char *keys_device_asked(void);
