/* libcuda without a GPU, for cuDNN's planning: the driver's functions that it looks for are there, and loading a kernel
 * that it has compiled succeeds. None of them is launched. */
#include <stddef.h>

enum { DONE = 0, UNAVAILABLE = 46 };

static int something;

int cuLibraryLoadData(void **library, const void *code);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);

int cuLibraryLoadData(void **library, const void *code)
{
    *library = &something;
    return code ? DONE : UNAVAILABLE;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    *kernel = &something;
    return library == &something && name ? DONE : UNAVAILABLE;
}

#define ABSENT(name)                                                                                                   \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return UNAVAILABLE;                                                                                            \
    }
#define PRESENT(name)                                                                                                  \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return DONE;                                                                                                   \
    }
PRESENT(cuLibraryUnload)
PRESENT(cuFuncSetAttribute)
PRESENT(cuKernelSetAttribute)
ABSENT(cuCtxGetCurrent)
ABSENT(cuCtxGetDevice)
ABSENT(cuCtxGetLimit)
ABSENT(cuCtxPopCurrent)
ABSENT(cuCtxPushCurrent)
ABSENT(cuDeviceGet)
ABSENT(cuDeviceGetAttribute)
ABSENT(cuDeviceGetCount)
ABSENT(cuDevicePrimaryCtxRelease)
ABSENT(cuDevicePrimaryCtxReset)
ABSENT(cuDevicePrimaryCtxRetain)
ABSENT(cuDriverGetVersion)
ABSENT(cuFuncGetAttribute)
ABSENT(cuGetErrorName)
ABSENT(cuGetErrorString)
ABSENT(cuInit)
ABSENT(cuKernelGetAttribute)
ABSENT(cuKernelGetFunction)
ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLaunchKernel)
ABSENT(cuLaunchKernelEx)
ABSENT(cuLibraryLoadFromFile)
ABSENT(cuLinkAddData)
ABSENT(cuLinkAddData_v2)
ABSENT(cuLinkAddFile_v2)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate)
ABSENT(cuLinkCreate_v2)
ABSENT(cuLinkDestroy)
ABSENT(cuMemcpyDtoH_v2)
ABSENT(cuModuleGetFunction)
ABSENT(cuModuleGetGlobal_v2)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleLoadDataEx)
ABSENT(cuModuleLoadFatBinary)
ABSENT(cuModuleUnload)
ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ABSENT(cuOccupancyMaxPotentialClusterSize)
ABSENT(cuStreamGetCtx)
ABSENT(cuStreamSynchronize)
ABSENT(cuTensorMapEncodeTiled)
