/* Spikes: a loss or a gradient norm far above that of the previous steps, though finite.
 *
 * The measure is a robust z-score, (x - median) / (1.4826 MAD), over a window of steps: 1.4826 MAD, of the median
 * absolute deviation, is the standard deviation of a normal distribution, and a few outliers move neither it nor the
 * median. Norms are compared by their logarithm, since they vary by factors. Only rises count. In a very smooth run the
 * scale is at least SPIKE_LOSS_FLOOR of the median, and SPIKE_NORM_FLOOR in the logarithm: noise below that is never a
 * spike. The window is a value that checkpoints store, so that a resumed run judges alike.
 */
#pragma once

enum { SPIKE_WINDOW = 64, SPIKE_LEAST = 16 }; /* steps in the window, and before the first judgement */

#define SPIKE_LOSS_FLOOR 0.005
#define SPIKE_NORM_FLOOR 0.05

typedef struct spike_window {
    int count; /* 0..SPIKE_WINDOW steps, the oldest first */
    double loss[SPIKE_WINDOW], norm[SPIKE_WINDOW];
} spike_window;

typedef struct spike_scores {
    double loss, norm; /* z-scores; 0: too few steps; infinite: the value is not finite */
} spike_scores;

spike_scores spike_judge(const spike_window *w, double loss, double norm);
void spike_add(spike_window *w, double loss, double norm);
