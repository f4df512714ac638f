/* Spikes: a loss or a gradient norm that lies far above those of the steps before it, though finite.
 *
 * How far is a robust z-score, (x - median) / (1.4826 MAD), over a window of steps: 1.4826 MAD, of the median absolute
 * deviation, is the standard deviation of a normal distribution, and neither it nor the median is moved by a few
 * outliers. Norms are compared by their logarithm, since they vary by factors. Only what rises counts. A run that is
 * very smooth has a scale of at least SPIKE_LOSS_FLOOR of its median, and SPIKE_NORM_FLOOR in the logarithm: noise
 * below that is never a spike. The window is a value, a part of what a checkpoint holds, so that a resumed run judges
 * alike.
 */
#pragma once

enum { SPIKE_WINDOW = 64, SPIKE_LEAST = 16 }; /* steps: that are looked back on, and before the first judgement */

#define SPIKE_LOSS_FLOOR 0.005
#define SPIKE_NORM_FLOOR 0.05

typedef struct spike_window {
    int count; /* at most SPIKE_WINDOW, the oldest first */
    double loss[SPIKE_WINDOW], norm[SPIKE_WINDOW];
} spike_window;

typedef struct spike_scores {
    double loss, norm; /* z-scores; 0 where there are too few steps to tell; infinite for what is not finite */
} spike_scores;

spike_scores spike_judge(const spike_window *w, double loss, double norm);
void spike_add(spike_window *w, double loss, double norm);
