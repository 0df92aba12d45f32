/* A program that has a Vulkan of its own, through a volk of its own, and computes with mlxvk; and so does a library that
 * it links (filter.c), with another mlxvk inside. Neither sees the other's symbols. */
#include <stdio.h>
#include <volk.h>
#include "border.h"
#include "filter.h"
#include "mlxvk.h"

static int own_vulkan(void)
{
    const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO };
    VkInstance instance;
    uint32_t devices = 0;
    if (volkInitialize() || vkCreateInstance(&info, NULL, &instance)) return 1;
    volkLoadInstance(instance);
    vkEnumeratePhysicalDevices(instance, &devices, NULL);
    vkDestroyInstance(instance, NULL);
    return !devices;
}

int main(void)
{
    const float x[] = { 1, 2, 3, 4 }, squared[] = { 7, 10, 15, 22 };
    float y[4] = { 0 };
    mlxvk_stream s = mlxvk_default_gpu_stream_new();
    mlxvk_array a = mlxvk_array_new_data(x, (int[]){ 2, 2 }, 2, MLXVK_FLOAT32);
    int failed = own_vulkan() || mlxvk_matmul(&a, a, a, s) || mlxvk_array_read(a, y, sizeof y, s);
    mlxvk_array_free(a);
    mlxvk_stream_free(s);
    for (int i = 0; i < 4; i++) failed |= y[i] != squared[i];
    failed |= filter_sum(x, 4) != 10 || border_sum(x, 4) != 10;
    puts(failed ? "0 passed, 1 failed" : "1 passed, 0 failed");
    return failed;
}
