/* What the report knows, behind its functions. */
#pragma once

#include "engine/files/tensorboard.h"
#include "engine/guard/loads.h"
#include "engine/host/resources.h"
#include "engine/system/lines.h"
#include "engine/tracking/tracker.h"
#include "engine/train/report/training_report.h"

/* The report: rank 0's files, what it counts, and what it has said already. */
struct training_report {
    lines *metrics, *events;
    loads *loads;      /* NULL: the model has no experts */
    lines *load_lines; /* loads.jsonl; NULL: it is not written */
    tensorboard *board;
    tracker *tracker;     /* NULL: run.mlflow is not set */
    mlflow_login login;   /* the tracker's */
    resources *resources; /* of this host, kept by its first rank; NULL: nobody asks */
    double flops_per_token, peak_flops;
    double best_loss;       /* of the evaluations of this process */
    int64_t best_step;      /* 0: there was none */
    bool metrics_failing;   /* metrics cannot be written at the moment */
    bool resources_failing; /* nor the host's resources */
    bool stdout_failed;     /* standard output cannot be written any more */
};
