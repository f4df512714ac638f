/* Warp operations executed for all 32 lanes at once, in the fragment layouts of the PTX manual (see device.cuh). */
#include <cuda_shim.h>

namespace
{
float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

float from_fp16(uint16_t bits)
{
    static float *table;
    if (!table) {
        table = new float[65536];
        for (uint32_t i = 0; i < 65536; i++) {
            __half_raw raw;
            raw.x = (unsigned short)i;
            table[i] = __half2float(__half(raw));
        }
    }
    return table[bits];
}

template <float (*convert)(uint16_t)> void multiply(void *const lanes[32])
{
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const shim_product *mine = (const shim_product *)lanes[lane];
        int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 2; i++) {
            int shift = 16 * i;
            a[group][pair + i] = convert((uint16_t)(mine->a[0] >> shift));
            a[group + 8][pair + i] = convert((uint16_t)(mine->a[1] >> shift));
            a[group][pair + 8 + i] = convert((uint16_t)(mine->a[2] >> shift));
            a[group + 8][pair + 8 + i] = convert((uint16_t)(mine->a[3] >> shift));
            b[pair + i][group] = convert((uint16_t)(mine->b[0] >> shift));
            b[pair + 8 + i][group] = convert((uint16_t)(mine->b[1] >> shift));
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        shim_product *mine = (shim_product *)lanes[lane];
        int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            int row = group + (i & 2) * 4, column = pair + (i & 1);
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][column];
            mine->c[i] += sum;
        }
    }
}

template <bool transposed> void load(void *const lanes[32])
{
    uint16_t matrix[4][8][8];
    for (int lane = 0; lane < 32; lane++) {
        const shim_matrices *mine = (const shim_matrices *)lanes[lane];
        shim_check_shared(mine->row, 16);
        shim_note_read(mine->row, 16, (shim_self->number & ~31) + lane);
        memcpy(matrix[lane / 8][lane % 8], mine->row, 16);
    }
    for (int lane = 0; lane < 32; lane++) {
        shim_matrices *mine = (shim_matrices *)lanes[lane];
        int line = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            uint16_t low = transposed ? matrix[i][pair][line] : matrix[i][line][pair];
            uint16_t high = transposed ? matrix[i][pair + 1][line] : matrix[i][line][pair + 1];
            mine->result[i] = (uint32_t)low | (uint32_t)high << 16;
        }
    }
}
} // namespace

void shim_multiply_bf16(void *const lanes[32])
{
    multiply<from_bf16>(lanes);
}

void shim_multiply_fp16(void *const lanes[32])
{
    multiply<from_fp16>(lanes);
}

void shim_load_matrices(void *const lanes[32])
{
    load<false>(lanes);
}

void shim_load_matrices_transposed(void *const lanes[32])
{
    load<true>(lanes);
}

void shim_exchange_all(void *const lanes[32])
{
    for (int lane = 0; lane < 32; lane++) {
        shim_exchange *mine = (shim_exchange *)lanes[lane];
        memcpy(mine->result, ((const shim_exchange *)lanes[mine->lane])->value, sizeof mine->result);
    }
}

void shim_nothing(void *const lanes[32])
{
    (void)lanes;
}

void shim_ballot_all(void *const lanes[32])
{
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; lane++)
        bits |= (uint32_t)((const shim_vote *)lanes[lane])->value << lane;
    for (int lane = 0; lane < 32; lane++)
        ((shim_vote *)lanes[lane])->result = bits;
}
