/* GPU products: profiles, ids, sizes and placements as `nvidia-smi mig -lgip` and `-lgipp` list them on real ones.
 * The last has a grid of its own (12 wide), so that nothing above may take the A100's for granted. */
#include "state.h"
#include <stddef.h>

#define GRID_A(small, middle, half, whole, sms1, sms2, sms3, sms4, sms7) { \
    {0x0, 19, 1, 7, sms1, small, "MIG 1g.10gb", 1, {0, 1, 2, 3, 4, 5, 6, -1}}, \
    {0x1, 14, 2, 3, sms2, middle, "MIG 2g.20gb", 2, {0, 2, 4, -1}}, \
    {0x2, 9, 3, 2, sms3, half, "MIG 3g.40gb", 4, {0, 4, -1}}, \
    {0x3, 5, 4, 1, sms4, half, "MIG 4g.40gb", 4, {0, -1}}, \
    {0x4, 0, 7, 1, sms7, whole, "MIG 7g.80gb", 8, {0, -1}}, \
    {0x7, 20, 1, 1, sms1, small, "MIG 1g.10gb+me", 1, {0, 1, 2, 3, 4, 5, 6, -1}}, \
    {0x9, 15, 1, 4, sms1, middle, "MIG 1g.20gb", 2, {0, 2, 4, 6, -1}}, \
}
const Product products[] = {
    {"a100", "NVIDIA A100-SXM4-80GB", 7, 8, 0, 81920, 7, GRID_A(9728, 19968, 40192, 80640, 14, 28, 42, 56, 98)},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 9, 0, 81559, 7, GRID_A(9984, 20096, 40448, 81152, 16, 32, 60, 64, 132)},
    {"p100", "Tesla P100-PCIE-16GB", 4, 6, 0, 16384, 0, {{0}}},
    {"orin", "Orin (nvgpu)", 7, 8, 1, 30697, 0, {{0}}},
    {"t4", "Tesla T4", 6, 7, 0, 15360, 0, {{0}}},
    {"pro6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 10, 12, 0, 97887, 4, {
        {0x0, 14, 1, 4, 46, 24192, "MIG 1g.24gb", 3, {0, 3, 6, 9, -1}},
        {0x1, 5, 2, 2, 94, 48512, "MIG 2g.48gb", 6, {0, 6, -1}},
        {0x3, 0, 4, 1, 188, 97280, "MIG 4g.96gb", 12, {0, -1}},
        {0x7, 21, 1, 1, 46, 24192, "MIG 1g.24gb+me", 3, {0, 3, 6, 9, -1}},
        {0xF, 67, 1, 4, 46, 24192, "MIG 1g.24gb-me", 3, {0, 3, 6, 9, -1}},
    }},
    {NULL, NULL, 0, 0, 0, 0, 0, {{0}}},
};
