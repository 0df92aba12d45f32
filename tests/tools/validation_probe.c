/* Makes two mistakes on purpose, so that a run under the validation layer can show that it would notice them: a buffer
 * of no bytes (core validation), and two writes to the same bytes with no barrier between (synchronization validation).
 * Exits with 0 when it got that far. */
#define VOLK_IMPLEMENTATION
#include <volk.h>
#include <stdio.h>

#define TRY(call)                                                                                                     \
    do {                                                                                                              \
        VkResult result_ = (call);                                                                                    \
        if (result_) {                                                                                                \
            fprintf(stderr, "validation_probe: %s: %d\n", #call, (int)result_);                                       \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

static uint32_t memory_type(VkPhysicalDevice gpu, uint32_t allowed)
{
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(gpu, &memory);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++)
        if (allowed & 1u << i) return i;
    return 0;
}

int main(void)
{
    TRY(volkInitialize());
    VkInstance instance;
    VkApplicationInfo program = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2 };
    TRY(vkCreateInstance(&(VkInstanceCreateInfo){ .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                                  .pApplicationInfo = &program }, NULL, &instance));
    volkLoadInstance(instance);
    uint32_t count = 1;
    VkPhysicalDevice gpu = VK_NULL_HANDLE;
    if (vkEnumeratePhysicalDevices(instance, &count, &gpu) < 0 || count == 0) {
        fprintf(stderr, "validation_probe: no device\n");
        return 1;
    }
    VkDevice device;
    float priority = 1;
    VkDeviceQueueCreateInfo queue = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                      .pQueuePriorities = &priority };
    TRY(vkCreateDevice(gpu, &(VkDeviceCreateInfo){ .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                                   .queueCreateInfoCount = 1, .pQueueCreateInfos = &queue },
                       NULL, &device));

    VkBuffer buffer;
    VkBufferCreateInfo buffer_info = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 0,
                                       .usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT };
    if (vkCreateBuffer(device, &buffer_info, NULL, &buffer) == VK_SUCCESS) vkDestroyBuffer(device, buffer, NULL);

    buffer_info.size = 1024;
    TRY(vkCreateBuffer(device, &buffer_info, NULL, &buffer));
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device, buffer, &needs);
    VkDeviceMemory memory;
    TRY(vkAllocateMemory(device, &(VkMemoryAllocateInfo){
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needs.size,
        .memoryTypeIndex = memory_type(gpu, needs.memoryTypeBits) }, NULL, &memory));
    TRY(vkBindBufferMemory(device, buffer, memory, 0));

    VkCommandPool pool;
    TRY(vkCreateCommandPool(device, &(VkCommandPoolCreateInfo){ .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO },
                            NULL, &pool));
    VkCommandBuffer commands;
    TRY(vkAllocateCommandBuffers(device, &(VkCommandBufferAllocateInfo){
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1 }, &commands));
    TRY(vkBeginCommandBuffer(commands, &(VkCommandBufferBeginInfo){
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO }));
    vkCmdFillBuffer(commands, buffer, 0, 1024, 1);
    vkCmdFillBuffer(commands, buffer, 0, 1024, 2);
    TRY(vkEndCommandBuffer(commands));

    vkDestroyCommandPool(device, pool, NULL);
    vkDestroyBuffer(device, buffer, NULL);
    vkFreeMemory(device, memory, NULL);
    vkDestroyDevice(device, NULL);
    vkDestroyInstance(instance, NULL);
    return 0;
}
