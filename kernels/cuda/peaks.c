#include "kernels/cuda/peaks.h"

#include <stddef.h>
#include <string.h>

/* Dense peaks in FLOP/s of one multiprocessor, from the vendor's data sheets: tensor cores in bf16 and tf32, and fp32. The
 * first name that the GPU's begins with counts. */
static const struct {
    const char *name;
    double bf16, tf32, fp32;
} peaks[] = {
    {"NVIDIA H100 PCIe", 756.0e12 / 114, 378.0e12 / 114, 51.0e12 / 114},
    {"NVIDIA H100 NVL", 835.0e12 / 132, 417.5e12 / 132, 60.0e12 / 132},
    {"NVIDIA H100", 989.4e12 / 132, 494.7e12 / 132, 66.9e12 / 132},
    {"NVIDIA H200 NVL", 835.5e12 / 132, 417.5e12 / 132, 60.0e12 / 132},
    {"NVIDIA H200", 989.4e12 / 132, 494.7e12 / 132, 66.9e12 / 132},
    {"NVIDIA GH200", 989.4e12 / 132, 494.7e12 / 132, 66.9e12 / 132},
    {"NVIDIA B200", 2250.0e12 / 148, 1120.0e12 / 148, 75.0e12 / 148},
    {"NVIDIA GB200", 2450.0e12 / 148, 1225.0e12 / 148, 80.0e12 / 148},
    {"NVIDIA A100", 311.9e12 / 108, 155.9e12 / 108, 19.5e12 / 108},
    {"NVIDIA L40S", 362.0e12 / 142, 183.0e12 / 142, 91.6e12 / 142},
    {"NVIDIA L4", 121.0e12 / 58, 60.0e12 / 58, 30.3e12 / 58},
    {"NVIDIA A10", 125.0e12 / 72, 62.5e12 / 72, 31.2e12 / 72},
};

void peaks_of(double *bf16, double *tf32, double *fp32, const char *name, int multiprocessors)
{
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (!strncmp(name, peaks[i].name, strlen(peaks[i].name))) {
            *bf16 = multiprocessors * peaks[i].bf16;
            *tf32 = multiprocessors * peaks[i].tf32;
            *fp32 = multiprocessors * peaks[i].fp32;
            return;
        }
}
