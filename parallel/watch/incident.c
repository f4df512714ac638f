#include "parallel/watch/incident.h"

static const char *const phases[INCIDENT_PHASES] = {
    [DURING_START] = "start",           [DURING_SETUP] = "set-up", [DURING_LOAD] = "load", [DURING_STEP] = "step",
    [DURING_EVALUATION] = "evaluation", [DURING_SAVE] = "save",    [DURING_END] = "end",
};

static const char *const verdicts[INCIDENT_VERDICTS] = {
    [INCIDENT_LINK] = "link",       [INCIDENT_DEAD] = "dead",       [INCIDENT_FROZEN] = "frozen",
    [INCIDENT_SLOW] = "slow",       [INCIDENT_STORAGE] = "storage", [INCIDENT_DATA] = "data",
    [INCIDENT_NUMBERS] = "numbers", [INCIDENT_REFUSED] = "refused",
};

const char *incident_phase_name(incident_phase p)
{
    return phases[p];
}

const char *incident_verdict_name(incident_verdict v)
{
    return verdicts[v];
}
