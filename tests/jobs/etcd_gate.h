/* A gate in front of an etcd of one node: it loses answers, keeps requests back, or lies, when it is told. One request
 * at a time passes it; both sides close their connections behind each. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

typedef enum gate_act {
    GATE_PASSES,
    GATE_LOSES_ANSWER, /* once: the request is carried out */
    GATE_KEEPS_BACK,   /* once: the request is kept, and its connection closed */
    GATE_IS_SHUT,
    GATE_LOSES_WRITES, /* writes and transactions are answered well, and not carried out */
    GATE_REPEATS,      /* what is read is what was read when this began */
    GATE_FORGETS,      /* no key is there */
} gate_act;

enum { GATE_REQUEST = 1 << 16 };

typedef struct gate {
    int listener, port, behind;
    bool doubled; /* members know two addresses of it: what the first does not answer is asked of the second at once */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    gate_act act;
    const char *path; /* of the requests that it acts on once */
    int acted;
    char kept[GATE_REQUEST];
    int kept_bytes;
    char *read; /* the last answer to a reading, with its head */
} gate;

/* `behind`: etcd's port. */
void gate_begin(gate *g, int behind);
void gate_end(gate *g);
void gate_set(gate *g, gate_act act, const char *path);
/* Returns how many requests it has acted on since it was set. */
int gate_acted(gate *g);
/* Sends a request to etcd; the answer goes to `client`, unless that is -1. */
void gate_send_on(gate *g, const char *request, int bytes, int client);
