/* A renderer that shares its GPU with mlxvk: it draws an animated scene, a small convolutional network upscales each
 * frame inside the renderer's command buffer, and a language model writes a line of text into it, a slice of a frame at
 * a time.
 *
 *     make engine                                      (installs SDL2 and libpng; --help says the rest)
 *
 * All of Vulkan is the program's: instance, device, queue, swapchain, images, semaphores. What mlxvk does there stands
 * in the sections >>network, >>writer and >>frame. */
#define VK_NO_PROTOTYPES
#include <SDL2/SDL.h>
#include <SDL2/SDL_vulkan.h>
#include <png.h>
#include <vulkan/vulkan.h>

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlxvk.h"
#include "qwen3/model.h"
#include "qwen3/sampler.h"
#include "qwen3/tokenizer.h"

enum { W = 160, H = 120, UP = 2, LINE = 24, SCREEN_W = 2 * UP * W, SCREEN_H = UP * H + LINE, IN_FLIGHT = 2,
       IMAGES_MOST = 8, TEXT_MOST = 52, CHANNELS = 4 };

static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* ==== >>vulkan: what the program calls of it ====================================================================== */

#define INSTANCE_FUNCTIONS(X)                                                                                         \
    X(vkDestroyInstance) X(vkEnumeratePhysicalDevices) X(vkGetPhysicalDeviceProperties)                               \
    X(vkGetPhysicalDeviceMemoryProperties) X(vkGetPhysicalDeviceQueueFamilyProperties) X(vkGetPhysicalDeviceFeatures2) \
    X(vkGetPhysicalDeviceSurfaceSupportKHR) X(vkGetPhysicalDeviceSurfaceFormatsKHR)                                   \
    X(vkGetPhysicalDeviceSurfaceCapabilitiesKHR) X(vkDestroySurfaceKHR) X(vkCreateDevice) X(vkDestroyDevice)          \
    X(vkGetDeviceQueue) X(vkCreateSwapchainKHR) X(vkDestroySwapchainKHR) X(vkGetSwapchainImagesKHR)                   \
    X(vkAcquireNextImageKHR) X(vkQueuePresentKHR) X(vkQueueSubmit) X(vkQueueWaitIdle) X(vkCreateSemaphore)            \
    X(vkDestroySemaphore) X(vkWaitSemaphores) X(vkCreateCommandPool) X(vkDestroyCommandPool)                          \
    X(vkAllocateCommandBuffers) X(vkBeginCommandBuffer) X(vkEndCommandBuffer) X(vkCreateImage) X(vkDestroyImage)      \
    X(vkGetImageMemoryRequirements) X(vkBindImageMemory) X(vkCreateImageView) X(vkDestroyImageView)                   \
    X(vkCreateRenderPass) X(vkDestroyRenderPass) X(vkCreateFramebuffer) X(vkDestroyFramebuffer) X(vkAllocateMemory)   \
    X(vkFreeMemory) X(vkMapMemory) X(vkCreateBuffer) X(vkDestroyBuffer) X(vkGetBufferMemoryRequirements)              \
    X(vkBindBufferMemory) X(vkCmdBeginRenderPass) X(vkCmdEndRenderPass) X(vkCmdClearAttachments)                      \
    X(vkCmdPipelineBarrier) X(vkCmdBlitImage) X(vkCmdCopyImage) X(vkCmdCopyImageToBuffer)
#define X(name) static PFN_##name name;
INSTANCE_FUNCTIONS(X)
#undef X

#define TRY(call) try_it((call), #call)
static void try_it(VkResult result, const char *what)
{
    if (result < 0) die("%.60s: VkResult %d", what, result);
}

struct picture { VkImage image; VkDeviceMemory memory; VkImageView view; VkFramebuffer frame; int w, h; };

static struct engine {
    SDL_Window *window;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkPhysicalDeviceVulkan12Features features12;
    VkPhysicalDeviceVulkan11Features features11;
    VkPhysicalDeviceFeatures2 features;
    uint32_t family;
    VkQueue queue;
    VkSurfaceKHR surface;
    VkSwapchainKHR swapchain;
    VkExtent2D extent;
    VkImage images[IMAGES_MOST];
    VkSemaphore rendered[IMAGES_MOST], acquired[IN_FLIGHT];
    VkSemaphore timeline;                            /* the number of frames that are done */
    VkCommandPool pools[IN_FLIGHT];
    VkCommandBuffer commands[IN_FLIGHT];
    VkRenderPass clear, over;                        /* onto nothing; onto what is there */
    struct picture scene, upscaled, screen;
    VkBuffer readback;
    VkDeviceMemory readback_memory;
    const uint8_t *read;
    uint64_t frame;
} g;

static void open_instance(void)
{
    const VkApplicationInfo app = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pApplicationName = "engine",
                                    .apiVersion = VK_API_VERSION_1_2 };
    const char *names[16];
    unsigned count = 16;
    if (SDL_Init(SDL_INIT_VIDEO)) die("SDL: %s", SDL_GetError());
    g.window = SDL_CreateWindow("mlxvk beside a renderer", SDL_WINDOWPOS_CENTERED, SDL_WINDOWPOS_CENTERED, SCREEN_W,
                                SCREEN_H, SDL_WINDOW_VULKAN);
    if (!g.window || !SDL_Vulkan_GetInstanceExtensions(g.window, &count, names)) die("SDL: %s", SDL_GetError());
    *(void **)&g.get = SDL_Vulkan_GetVkGetInstanceProcAddr();
    const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app,
                                        .enabledExtensionCount = count, .ppEnabledExtensionNames = names };
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)g.get(NULL, "vkCreateInstance");
    TRY(create(&info, NULL, &g.instance));
#define X(name) if (!(name = (PFN_##name)g.get(g.instance, #name))) die("no " #name);
    INSTANCE_FUNCTIONS(X)
#undef X
    if (!SDL_Vulkan_CreateSurface(g.window, g.instance, &g.surface)) die("SDL: %s", SDL_GetError());
}

/* The first device with a queue that draws, computes and presents. */
static void choose_device(void)
{
    VkPhysicalDevice list[8];
    uint32_t count = 8;
    TRY(vkEnumeratePhysicalDevices(g.instance, &count, list));
    for (uint32_t i = 0; i < count && !g.physical; i++) {
        VkQueueFamilyProperties families[16];
        uint32_t n = 16;
        vkGetPhysicalDeviceQueueFamilyProperties(list[i], &n, families);
        for (uint32_t k = 0; k < n && !g.physical; k++) {
            VkBool32 presents = VK_FALSE;
            vkGetPhysicalDeviceSurfaceSupportKHR(list[i], k, g.surface, &presents);
            if (!presents || ~families[k].queueFlags & (VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT)) continue;
            g.physical = list[i];
            g.family = k;
        }
    }
    if (!g.physical) die("no Vulkan device draws, computes and presents with one queue");
}

/* With the features that it has of those that mlxvk uses. */
static void open_device(void)
{
    static const char *const extensions[] = { VK_KHR_SWAPCHAIN_EXTENSION_NAME };
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueFamilyIndex = g.family, .queueCount = 1, .pQueuePriorities = &priority };
    VkPhysicalDeviceVulkan11Features has11 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES };
    VkPhysicalDeviceVulkan12Features has12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                               .pNext = &has11 };
    VkPhysicalDeviceFeatures2 has = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &has12 };
    vkGetPhysicalDeviceFeatures2(g.physical, &has);
    if (!has12.timelineSemaphore) die("the device has no timeline semaphores");
    g.features11 = (VkPhysicalDeviceVulkan11Features){ .sType = has11.sType,
        .storageBuffer16BitAccess = has11.storageBuffer16BitAccess };
    g.features12 = (VkPhysicalDeviceVulkan12Features){ .sType = has12.sType, .pNext = &g.features11,
        .timelineSemaphore = VK_TRUE, .storageBuffer8BitAccess = has12.storageBuffer8BitAccess,
        .shaderFloat16 = has12.shaderFloat16, .shaderInt8 = has12.shaderInt8 };
    g.features = (VkPhysicalDeviceFeatures2){ .sType = has.sType, .pNext = &g.features12 };
    g.features.features.shaderInt64 = has.features.shaderInt64;
    g.features.features.shaderInt16 = has.features.shaderInt16;
    const VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &g.features,
        .queueCreateInfoCount = 1, .pQueueCreateInfos = &queue, .enabledExtensionCount = 1,
        .ppEnabledExtensionNames = extensions };
    TRY(vkCreateDevice(g.physical, &info, NULL, &g.device));
    vkGetDeviceQueue(g.device, g.family, 0, &g.queue);
}

static VkSemaphore new_semaphore(VkSemaphoreType kind)
{
    const VkSemaphoreTypeCreateInfo type = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                             .semaphoreType = kind };
    const VkSemaphoreCreateInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type };
    VkSemaphore semaphore;
    TRY(vkCreateSemaphore(g.device, &info, NULL, &semaphore));
    return semaphore;
}

static void open_swapchain(void)
{
    VkSurfaceCapabilitiesKHR can;
    VkSurfaceFormatKHR formats[32];
    uint32_t count = 32;
    TRY(vkGetPhysicalDeviceSurfaceCapabilitiesKHR(g.physical, g.surface, &can));
    TRY(vkGetPhysicalDeviceSurfaceFormatsKHR(g.physical, g.surface, &count, formats));
    if (!(can.supportedUsageFlags & VK_IMAGE_USAGE_TRANSFER_DST_BIT)) die("the window's images cannot be copied to");
    g.extent = can.currentExtent.width != UINT32_MAX ? can.currentExtent : (VkExtent2D){ SCREEN_W, SCREEN_H };
    for (uint32_t i = 1; i < count; i++)
        if (formats[i].format == VK_FORMAT_B8G8R8A8_UNORM) formats[0] = formats[i];
    const VkSwapchainCreateInfoKHR info = { .sType = VK_STRUCTURE_TYPE_SWAPCHAIN_CREATE_INFO_KHR, .surface = g.surface,
        .minImageCount = can.minImageCount < 3 ? 3 : can.minImageCount, .imageFormat = formats[0].format,
        .imageColorSpace = formats[0].colorSpace, .imageExtent = g.extent, .imageArrayLayers = 1,
        .imageUsage = VK_IMAGE_USAGE_TRANSFER_DST_BIT, .preTransform = can.currentTransform,
        .compositeAlpha = VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR, .presentMode = VK_PRESENT_MODE_FIFO_KHR };
    TRY(vkCreateSwapchainKHR(g.device, &info, NULL, &g.swapchain));
    count = IMAGES_MOST;
    TRY(vkGetSwapchainImagesKHR(g.device, g.swapchain, &count, g.images));
    for (uint32_t i = 0; i < count; i++) g.rendered[i] = new_semaphore(VK_SEMAPHORE_TYPE_BINARY);
}

static VkDeviceMemory take_memory(const VkMemoryRequirements *need, VkMemoryPropertyFlags wanted)
{
    VkPhysicalDeviceMemoryProperties m;
    VkMemoryAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = need->size };
    VkDeviceMemory memory;
    vkGetPhysicalDeviceMemoryProperties(g.physical, &m);
    while (info.memoryTypeIndex < m.memoryTypeCount && (!(need->memoryTypeBits >> info.memoryTypeIndex & 1) ||
           (m.memoryTypes[info.memoryTypeIndex].propertyFlags & wanted) != wanted)) info.memoryTypeIndex++;
    if (info.memoryTypeIndex == m.memoryTypeCount) die("no memory of the kind that is needed");
    TRY(vkAllocateMemory(g.device, &info, NULL, &memory));
    return memory;
}

/* Draws onto a picture that it clears, or that holds something, and leaves it to be copied from. */
static VkRenderPass new_pass(bool clears)
{
    const VkAttachmentDescription picture = { .format = VK_FORMAT_R8G8B8A8_UNORM, .samples = VK_SAMPLE_COUNT_1_BIT,
        .loadOp = clears ? VK_ATTACHMENT_LOAD_OP_CLEAR : VK_ATTACHMENT_LOAD_OP_LOAD,
        .storeOp = VK_ATTACHMENT_STORE_OP_STORE,
        .initialLayout = clears ? VK_IMAGE_LAYOUT_UNDEFINED : VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL,
        .finalLayout = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL };
    const VkAttachmentReference colour = { 0, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL };
    const VkSubpassDescription subpass = { .colorAttachmentCount = 1, .pColorAttachments = &colour };
    const VkAccessFlags draw = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT | VK_ACCESS_COLOR_ATTACHMENT_READ_BIT,
                        copy = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    const VkPipelineStageFlags drawn = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
                               copied = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkSubpassDependency order[] = {
        { VK_SUBPASS_EXTERNAL, 0, drawn | copied, drawn, draw | copy, draw, 0 },
        { 0, VK_SUBPASS_EXTERNAL, drawn, drawn | copied, draw, draw | copy, 0 } };
    const VkRenderPassCreateInfo info = { .sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO, .attachmentCount = 1,
        .pAttachments = &picture, .subpassCount = 1, .pSubpasses = &subpass, .dependencyCount = 2,
        .pDependencies = order };
    VkRenderPass pass;
    TRY(vkCreateRenderPass(g.device, &info, NULL, &pass));
    return pass;
}

static void open_picture(struct picture *p, int w, int h, VkRenderPass pass)
{
    const VkImageCreateInfo info = { .sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO, .imageType = VK_IMAGE_TYPE_2D,
        .format = VK_FORMAT_R8G8B8A8_UNORM, .extent = { (uint32_t)w, (uint32_t)h, 1 }, .mipLevels = 1, .arrayLayers = 1,
        .samples = VK_SAMPLE_COUNT_1_BIT, .tiling = VK_IMAGE_TILING_OPTIMAL,
        .usage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT |
                 VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT };
    VkImageViewCreateInfo view = { .sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
        .viewType = VK_IMAGE_VIEW_TYPE_2D, .format = info.format,
        .subresourceRange = { VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1 } };
    VkFramebufferCreateInfo frame = { .sType = VK_STRUCTURE_TYPE_FRAMEBUFFER_CREATE_INFO, .renderPass = pass,
        .attachmentCount = 1, .width = (uint32_t)w, .height = (uint32_t)h, .layers = 1, .pAttachments = &p->view };
    VkMemoryRequirements need;
    p->w = w;
    p->h = h;
    TRY(vkCreateImage(g.device, &info, NULL, &p->image));
    vkGetImageMemoryRequirements(g.device, p->image, &need);
    p->memory = take_memory(&need, 0);
    TRY(vkBindImageMemory(g.device, p->image, p->memory, 0));
    view.image = p->image;
    TRY(vkCreateImageView(g.device, &view, NULL, &p->view));
    TRY(vkCreateFramebuffer(g.device, &frame, NULL, &p->frame));
}

static void close_picture(struct picture *p)
{
    vkDestroyFramebuffer(g.device, p->frame, NULL);
    vkDestroyImageView(g.device, p->view, NULL);
    vkDestroyImage(g.device, p->image, NULL);
    vkFreeMemory(g.device, p->memory, NULL);
}

static void open_readback(void)
{
    const VkBufferCreateInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = SCREEN_W * SCREEN_H * CHANNELS, .usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT };
    VkMemoryRequirements need;
    void *mapped;
    TRY(vkCreateBuffer(g.device, &info, NULL, &g.readback));
    vkGetBufferMemoryRequirements(g.device, g.readback, &need);
    g.readback_memory = take_memory(&need, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    TRY(vkBindBufferMemory(g.device, g.readback, g.readback_memory, 0));
    TRY(vkMapMemory(g.device, g.readback_memory, 0, VK_WHOLE_SIZE, 0, &mapped));
    g.read = mapped;
}

static void open_engine(void)
{
    VkCommandPoolCreateInfo pool = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                     .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT };
    open_instance();
    choose_device();
    pool.queueFamilyIndex = g.family;
    open_device();
    open_swapchain();
    g.clear = new_pass(true);
    g.over = new_pass(false);
    open_picture(&g.scene, W, H, g.clear);
    open_picture(&g.upscaled, UP * W, UP * H, g.clear);
    open_picture(&g.screen, SCREEN_W, SCREEN_H, g.over);
    open_readback();
    g.timeline = new_semaphore(VK_SEMAPHORE_TYPE_TIMELINE);
    for (int i = 0; i < IN_FLIGHT; i++) {
        g.acquired[i] = new_semaphore(VK_SEMAPHORE_TYPE_BINARY);
        TRY(vkCreateCommandPool(g.device, &pool, NULL, &g.pools[i]));
        const VkCommandBufferAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
            .commandPool = g.pools[i], .commandBufferCount = 1 };
        TRY(vkAllocateCommandBuffers(g.device, &info, &g.commands[i]));
    }
}

static void close_engine(void)
{
    for (int i = 0; i < IN_FLIGHT; i++) {
        vkDestroySemaphore(g.device, g.acquired[i], NULL);
        vkDestroyCommandPool(g.device, g.pools[i], NULL);
    }
    for (int i = 0; i < IMAGES_MOST; i++) vkDestroySemaphore(g.device, g.rendered[i], NULL);
    vkDestroySemaphore(g.device, g.timeline, NULL);
    close_picture(&g.scene);
    close_picture(&g.upscaled);
    close_picture(&g.screen);
    vkDestroyRenderPass(g.device, g.clear, NULL);
    vkDestroyRenderPass(g.device, g.over, NULL);
    vkDestroyBuffer(g.device, g.readback, NULL);
    vkFreeMemory(g.device, g.readback_memory, NULL);
    vkDestroySwapchainKHR(g.device, g.swapchain, NULL);
    vkDestroyDevice(g.device, NULL);
    vkDestroySurfaceKHR(g.instance, g.surface, NULL);
    vkDestroyInstance(g.instance, NULL);
    SDL_DestroyWindow(g.window);
    SDL_Quit();
}

/* ==== >>scene: rectangles, which need no shaders ================================================================== */

static void box(VkCommandBuffer c, int x, int y, int w, int h, const float colour[4])
{
    const VkClearAttachment clear = { VK_IMAGE_ASPECT_COLOR_BIT, 0, { .color = { .float32 = { colour[0], colour[1],
                                                                                              colour[2], 1 } } } };
    const VkClearRect rect = { { { x, y }, { (uint32_t)w, (uint32_t)h } }, 0, 1 };
    if (w > 0 && h > 0) vkCmdClearAttachments(c, 1, &clear, 1, &rect);
}

static void disc(VkCommandBuffer c, double x, double y, double radius, const float colour[4])
{
    for (int row = (int)ceil(y - radius); row <= (int)(y + radius); row++) {
        double half = sqrt(radius * radius - (row - y) * (row - y));
        int left = (int)ceil(x - half), right = (int)(x + half);
        if (row < 0 || row >= H || right < 0 || left >= W) continue;
        if (left < 0) left = 0;
        if (right >= W) right = W - 1;
        box(c, left, row, right - left + 1, 1, colour);
    }
}

static void begin_pass(VkCommandBuffer c, VkRenderPass pass, const struct picture *p)
{
    const VkClearValue sky = { .color = { .float32 = { 0.10f, 0.13f, 0.25f, 1 } } };
    const VkRenderPassBeginInfo info = { .sType = VK_STRUCTURE_TYPE_RENDER_PASS_BEGIN_INFO, .renderPass = pass,
        .framebuffer = p->frame, .renderArea = { { 0, 0 }, { (uint32_t)p->w, (uint32_t)p->h } }, .clearValueCount = 1,
        .pClearValues = &sky };
    vkCmdBeginRenderPass(c, &info, VK_SUBPASS_CONTENTS_INLINE);
}

/* A sun over hills, and balls that jump. */
static void draw_scene(VkCommandBuffer c, double t)
{
    static const float sun[] = { 1, 0.85f, 0.4f, 1 }, far_hill[] = { 0.2f, 0.3f, 0.35f, 1 },
                       near_hill[] = { 0.12f, 0.4f, 0.2f, 1 };
    begin_pass(c, g.clear, &g.scene);
    disc(c, W / 2 + 50 * cos(t / 2), 40 + 14 * sin(t / 2), 15, sun);
    for (int x = 0; x < W; x++) {
        int far_top = (int)(76 + 10 * sin(0.06 * x + t / 3) + 4 * sin(0.17 * x));
        int near_top = (int)(94 + 8 * sin(0.045 * x + 1 + t));
        box(c, x, far_top, 1, H - far_top, far_hill);
        box(c, x, near_top, 1, H - near_top, near_hill);
    }
    for (int i = 0; i < 5; i++) {
        const float ball[] = { 0.5f + 0.1f * (float)i, 0.9f - 0.15f * (float)i, 0.9f, 1 };
        disc(c, 18 + 31 * i, 88 - 40 * fabs(sin(1.5 * t + i)), 7, ball);
    }
    vkCmdEndRenderPass(c);
}

/* ==== >>letters: five pixels by seven, in one byte a row ========================================================== */

static const struct { char letter; uint8_t rows[7]; } font[] = {
    { 'A', { 14, 17, 17, 31, 17, 17, 17 } }, { 'B', { 30, 17, 17, 30, 17, 17, 30 } },
    { 'C', { 14, 17, 16, 16, 16, 17, 14 } }, { 'D', { 30, 17, 17, 17, 17, 17, 30 } },
    { 'E', { 31, 16, 16, 30, 16, 16, 31 } }, { 'F', { 31, 16, 16, 30, 16, 16, 16 } },
    { 'G', { 14, 17, 16, 23, 17, 17, 15 } }, { 'H', { 17, 17, 17, 31, 17, 17, 17 } },
    { 'I', { 14, 4, 4, 4, 4, 4, 14 } },      { 'J', { 7, 2, 2, 2, 2, 18, 12 } },
    { 'K', { 17, 18, 20, 24, 20, 18, 17 } }, { 'L', { 16, 16, 16, 16, 16, 16, 31 } },
    { 'M', { 17, 27, 21, 21, 17, 17, 17 } }, { 'N', { 17, 25, 21, 19, 17, 17, 17 } },
    { 'O', { 14, 17, 17, 17, 17, 17, 14 } }, { 'P', { 30, 17, 17, 30, 16, 16, 16 } },
    { 'Q', { 14, 17, 17, 17, 21, 18, 13 } }, { 'R', { 30, 17, 17, 30, 20, 18, 17 } },
    { 'S', { 15, 16, 16, 14, 1, 1, 30 } },   { 'T', { 31, 4, 4, 4, 4, 4, 4 } },
    { 'U', { 17, 17, 17, 17, 17, 17, 14 } }, { 'V', { 17, 17, 17, 17, 17, 10, 4 } },
    { 'W', { 17, 17, 17, 21, 21, 27, 17 } }, { 'X', { 17, 17, 10, 4, 10, 17, 17 } },
    { 'Y', { 17, 17, 10, 4, 4, 4, 4 } },     { 'Z', { 31, 1, 2, 4, 8, 16, 31 } },
    { '0', { 14, 17, 19, 21, 25, 17, 14 } }, { '1', { 4, 12, 4, 4, 4, 4, 14 } },
    { '2', { 14, 17, 1, 2, 4, 8, 31 } },     { '3', { 31, 2, 4, 2, 1, 17, 14 } },
    { '4', { 2, 6, 10, 18, 31, 2, 2 } },     { '5', { 31, 16, 30, 1, 1, 17, 14 } },
    { '6', { 6, 8, 16, 30, 17, 17, 14 } },   { '7', { 31, 1, 2, 4, 8, 8, 8 } },
    { '8', { 14, 17, 17, 14, 17, 17, 14 } }, { '9', { 14, 17, 17, 15, 1, 2, 12 } },
    { '.', { 0, 0, 0, 0, 0, 12, 12 } },      { ',', { 0, 0, 0, 0, 12, 4, 8 } },
    { '\'', { 4, 4, 8, 0, 0, 0, 0 } },       { '"', { 10, 10, 0, 0, 0, 0, 0 } },
    { '-', { 0, 0, 0, 31, 0, 0, 0 } },       { '?', { 14, 17, 1, 2, 4, 0, 4 } },
    { '!', { 4, 4, 4, 4, 4, 0, 4 } },        { ':', { 0, 12, 12, 0, 12, 12, 0 } },
    { ';', { 0, 12, 12, 0, 12, 4, 8 } },     { '(', { 2, 4, 8, 8, 8, 4, 2 } },
    { ')', { 8, 4, 2, 2, 2, 4, 8 } },        { '/', { 1, 1, 2, 4, 8, 16, 16 } },
    { '_', { 0, 0, 0, 0, 0, 0, 31 } },       { '`', { 8, 4, 2, 0, 0, 0, 0 } },
    { ' ', { 0 } },                          { 0, { 31, 17, 17, 17, 17, 17, 31 } },
};

/* A letter's row of pixels; small letters are drawn as large ones, others as a box. */
static unsigned letter_row(char letter, int row)
{
    size_t i = 0;
    while (font[i].letter && font[i].letter != toupper((unsigned char)letter)) i++;
    return font[i].rows[row];
}

enum { TEXT_X = 8, TEXT_Y = UP * H + 5, PIXEL = 2, ADVANCE = 6 * PIXEL };

static void draw_text(VkCommandBuffer c, const char *text)
{
    static const float white[] = { 1, 1, 1, 1 }, ground[] = { 0, 0, 0, 1 };
    begin_pass(c, g.over, &g.screen);
    box(c, 0, UP * H, SCREEN_W, LINE, ground);
    for (int i = 0; text[i] && i < TEXT_MOST; i++)
        for (int row = 0; row < 7; row++)
            for (int x = 0; x < 5; x++)
                if (letter_row(text[i], row) >> (4 - x) & 1)
                    box(c, TEXT_X + i * ADVANCE + x * PIXEL, TEXT_Y + row * PIXEL, PIXEL, PIXEL, white);
    vkCmdEndRenderPass(c);
}

/* ==== >>network: twice as large, and sharper ====================================================================== */

/* Two convolutions of 3 x 3 with a rectifier between. The first has the colours, and where a colour is over or under
 * the mean of its neighbours; the second makes four pixels of each: the bilinear ones, plus what sharpens them, more
 * where it is bright than where it is dark. Made by hand, not trained. */
enum { FEATURES = 9, OUTPUTS = 3 * UP * UP };
static float first_weights[FEATURES][3][3][3], second_weights[OUTPUTS][3][3][FEATURES];

static void make_weights(void)
{
    static const float over = 0.7f, under = 0.4f;
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 3; x++) {
                float edge = (y == 1 && x == 1 ? 1.0f : 0.0f) - 1 / 9.0f;
                first_weights[c][y][x][c] = y == 1 && x == 1;
                first_weights[3 + c][y][x][c] = edge;
                first_weights[6 + c][y][x][c] = -edge;
            }
    for (int o = 0; o < OUTPUTS; o++) {
        int c = o % 3, down = o / 6 ? 1 : -1, right = o / 3 % 2 ? 1 : -1;
        second_weights[o][1][1][c] = 9 / 16.0f;
        second_weights[o][1 + down][1][c] = second_weights[o][1][1 + right][c] = 3 / 16.0f;
        second_weights[o][1 + down][1 + right][c] = 1 / 16.0f;
        second_weights[o][1][1][3 + c] = over;
        second_weights[o][1][1][6 + c] = -under;
    }
}

static struct network {
    mlxvk_device device;
    mlxvk_stream stream;
    mlxvk_event done;
    mlxvk_array first, second, zero, opaque;
} net;

#define DO(call) do_it((call), #call)
static void do_it(int code, const char *what)
{
    mlxvk_error error = { 0 };
    if (!code) return;
    mlxvk_stream_error(net.stream, &error);
    if (!error.code) mlxvk_device_error(net.device, &error);
    die("%.60s: %s: %s", what, mlxvk_result_text(code), error.text);
}

static mlxvk_array new_array(const float *values, const int *shape, int ndim)
{
    mlxvk_array array = { NULL };
    DO(mlxvk_array_new_data_device(&array, values, shape, ndim, MLXVK_FLOAT32, net.device));
    return array;
}

/* mlxvk on the program's device and queue, with its timeline as an event. */
static void open_network(void)
{
    const mlxvk_adopt adopt = { .instance = g.instance, .physical_device = g.physical, .device = g.device,
        .queue = g.queue, .queue_family = g.family, .features = &g.features,
        .get_instance_proc_addr = SDL_Vulkan_GetVkGetInstanceProcAddr() };
    mlxvk_error error = { 0 };
    uint64_t timeline = 0;
    if (mlxvk_device_create(&net.device, &(mlxvk_device_desc){ .adopt = &adopt, .error = &error }))
        die("%s", error.text);
    net.stream = mlxvk_stream_new_device(net.device);
    DO(mlxvk_stream_hold(net.stream, true));
    memcpy(&timeline, &g.timeline, sizeof g.timeline);
    DO(mlxvk_event_adopt(&net.done, timeline, net.device));
    make_weights();
    net.first = new_array(&first_weights[0][0][0][0], (int[]){ FEATURES, 3, 3, 3 }, 4);
    net.second = new_array(&second_weights[0][0][0][0], (int[]){ OUTPUTS, 3, 3, FEATURES }, 4);
    net.zero = new_array((float[]){ 0 }, NULL, 0);
    DO(mlxvk_ones(&net.opaque, (int[]){ UP * H, UP * W, 1 }, 3, MLXVK_FLOAT32, net.stream));
    DO(mlxvk_array_eval(net.opaque));
}

static void close_network(void)
{
    mlxvk_event_free(net.done);
    mlxvk_array_free(net.first);
    mlxvk_array_free(net.second);
    mlxvk_array_free(net.zero);
    mlxvk_array_free(net.opaque);
    mlxvk_stream_free(net.stream);
    mlxvk_device_free(net.device);
}

static mlxvk_image image_of(const struct picture *p, VkImageLayout now)
{
    mlxvk_image image = { .format = VK_FORMAT_R8G8B8A8_UNORM, .width = (uint32_t)p->w, .height = (uint32_t)p->h,
                          .layout = now, .final_layout = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL };
    memcpy(&image.vk_image, &p->image, sizeof p->image);
    return image;
}

/* Records the network between two images into the command buffer. */
static void upscale(VkCommandBuffer c, mlxvk_recording *recording)
{
    const mlxvk_image from = image_of(&g.scene, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL);
    const mlxvk_image to = image_of(&g.upscaled, VK_IMAGE_LAYOUT_UNDEFINED);
    const int start[] = { 0, 0, 0 }, stop[] = { H, W, 3 }, step[] = { 1, 1, 1 };
    mlxvk_stream s = net.stream;
    mlxvk_array x = { NULL };
    DO(mlxvk_image_read(&x, &from, MLXVK_FLOAT32, s));
    DO(mlxvk_slice(&x, x, start, 3, stop, 3, step, 3, s));
    DO(mlxvk_expand_dims(&x, x, 0, s));
    DO(mlxvk_conv2d(&x, x, net.first, 1, 1, 1, 1, 1, 1, 1, s));
    DO(mlxvk_maximum(&x, x, net.zero, s));
    DO(mlxvk_conv2d(&x, x, net.second, 1, 1, 1, 1, 1, 1, 1, s));
    DO(mlxvk_reshape(&x, x, (int[]){ H, W, UP, UP, 3 }, 5, s));
    DO(mlxvk_transpose_axes(&x, x, (int[]){ 0, 2, 1, 3, 4 }, 5, s));
    DO(mlxvk_reshape(&x, x, (int[]){ UP * H, UP * W, 3 }, 3, s));
    mlxvk_vector_array both = mlxvk_vector_array_new_data((mlxvk_array[]){ x, net.opaque }, 2);
    DO(mlxvk_concatenate_axis(&x, both, 2, s));
    DO(mlxvk_image_write(&to, x, s));
    mlxvk_vector_array_free(both);
    mlxvk_array_free(x);
    DO(mlxvk_stream_record(s, c, recording));
}

/* ==== >>writer: a language model, a slice of a frame at a time ==================================================== */

static struct writer {
    struct gpu gpu;
    struct config config;
    struct safetensors weights;
    struct model model;
    struct tokenizer *tokenizer;
    struct sampler sampler;
    struct utf8_stream stream;
    struct text text;
    mlxvk_array token;
    mlxvk_event written;
    uint64_t tokens;                                 /* that were asked for; the event's value when that one is there */
    bool submitted;
    int slices, slices_most;                         /* of the token under way; of any so far */
    size_t drawn;                                    /* of the text, in the last frame: it may have grown since */
} w;

static void open_writer(const char *dir, const char *prompt)
{
    struct error e = { "" };
    struct ids ids = { 0 };
    char *path = path_join(dir, "tokenizer.json");
    mlxvk_array logits = { NULL };
    w.gpu.device = net.device;
    w.gpu.stream = mlxvk_stream_new_device(net.device);
    if (!config_read(&w.config, dir, &e) || !safetensors_open(&w.weights, dir, &e) ||
        !model_load(&w.model, &w.gpu, &w.config, &w.weights, NULL, NULL, &e) ||
        !(w.tokenizer = tokenizer_open(path, &e)) || !sampler_open(&w.sampler, &w.gpu, 0, 0, 0, 1, &e) ||
        !tokenizer_encode(w.tokenizer, prompt, strlen(prompt), true, &ids, &e)) die("%s", e.text);
    DO(mlxvk_stream_hold(w.gpu.stream, true));
    DO(mlxvk_event_new(&w.written, net.device));
    if (!model_prompt(&w.model, ids.data, ids.length, WANT_LAST, &logits, &e)) die("%s", e.text);
    sampler_next(&w.sampler, &w.gpu, logits, &w.token);
    w.tokens = 1;
    text_add_string(&w.text, prompt);
    gpu_drop(&logits);
    ids_free(&ids);
    free(path);
}

static void close_writer(void)
{
    gpu_drop(&w.token);
    sampler_close(&w.sampler);
    tokenizer_free(w.tokenizer);
    model_free(&w.model);
    safetensors_close(&w.weights);
    config_free(&w.config);
    text_free(&w.text);
    mlxvk_event_free(w.written);
    mlxvk_stream_free(w.gpu.stream);
}

/* One line, with one space between words. */
static void join_lines(struct text *text)
{
    size_t kept = 0;
    for (size_t i = 0; i < text->length; i++) {
        char c = isspace((unsigned char)text->data[i]) ? ' ' : text->data[i];
        if (c != ' ' || !kept || text->data[kept - 1] != ' ') text->data[kept++] = c;
    }
    text->data[text->length = kept] = 0;
}

/* Takes the token that is there, and asks for the one behind it. */
static void next_token(void)
{
    uint32_t id = 0;
    mlxvk_array logits = { NULL };
    struct error e = { "" };
    DO(mlxvk_array_item_uint32(&id, w.token));
    tokenizer_stream(w.tokenizer, (int32_t)id, &w.stream, &w.text);
    join_lines(&w.text);
    if (w.text.length < TEXT_MOST) {
        model_forward(&w.model, w.token, 1, WANT_LAST, &logits);
        sampler_next(&w.sampler, &w.gpu, logits, &w.token);
        gpu_drop(&logits);
        w.tokens++;
    }
    w.submitted = false;
    if (w.slices > w.slices_most) w.slices_most = w.slices;
    w.slices = 0;
    if (!gpu_ok(&w.gpu, "writer", &e)) die("%s", e.text);
}

/* So much of the next token as fits into the frame; when all of it was submitted, a look at whether it is there. */
static void write_some(uint64_t nanoseconds)
{
    size_t left = 0;
    if (w.text.length >= TEXT_MOST) return;
    if (w.submitted && mlxvk_event_is_signaled(w.written, w.tokens)) next_token();
    if (w.submitted || w.text.length >= TEXT_MOST) return;
    w.slices++;
    if (mlxvk_stream_advance(w.gpu.stream, nanoseconds, &left)) gpu_check(&w.gpu, MLXVK_ERROR_VULKAN);
    if (left) return;
    w.submitted = !mlxvk_event_signal(w.written, w.tokens, w.gpu.stream);
}

/* ==== >>frame ===================================================================================================== */

static void image_barrier(VkCommandBuffer c, VkImage image, VkImageLayout from, VkImageLayout to)
{
    const VkImageMemoryBarrier barrier = { .sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER, .oldLayout = from,
        .newLayout = to, .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT, .image = image,
        .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED, .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .subresourceRange = { VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1 } };
    vkCmdPipelineBarrier(c, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 0, NULL, 0, NULL,
                         1, &barrier);
}

static void blit(VkCommandBuffer c, const struct picture *from, VkImage to, int x, int w, int h, VkFilter filter)
{
    const VkImageSubresourceLayers whole = { VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1 };
    const VkImageBlit region = { .srcSubresource = whole, .srcOffsets = { { 0, 0, 0 }, { from->w, from->h, 1 } },
                                 .dstSubresource = whole, .dstOffsets = { { x, 0, 0 }, { x + w, h, 1 } } };
    vkCmdBlitImage(c, from->image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, to, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, 1,
                   &region, filter);
}

/* On the left the scene as the GPU's filter enlarges it, on the right as the network does; the text below. */
static void draw_screen(VkCommandBuffer c, VkImage window, bool with)
{
    image_barrier(c, g.screen.image, VK_IMAGE_LAYOUT_UNDEFINED, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
    blit(c, &g.scene, g.screen.image, 0, UP * W, UP * H, VK_FILTER_LINEAR);
    blit(c, with ? &g.upscaled : &g.scene, g.screen.image, UP * W, UP * W, UP * H,
         with ? VK_FILTER_NEAREST : VK_FILTER_LINEAR);
    draw_text(c, with ? w.text.data : "");
    if (with) w.drawn = w.text.length;
    image_barrier(c, window, VK_IMAGE_LAYOUT_UNDEFINED, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL);
    blit(c, &g.screen, window, 0, (int)g.extent.width, (int)g.extent.height, VK_FILTER_NEAREST);
    image_barrier(c, window, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, VK_IMAGE_LAYOUT_PRESENT_SRC_KHR);
}

static void submit(VkCommandBuffer c, const mlxvk_recording *recording, uint32_t image, int slot)
{
    enum { WAITS = 17 };
    VkSemaphore waits[WAITS] = { g.acquired[slot] }, signals[] = { g.rendered[image], g.timeline };
    uint64_t values[WAITS] = { 0 }, done[] = { 0, g.frame };
    VkPipelineStageFlags stages[WAITS] = { VK_PIPELINE_STAGE_ALL_COMMANDS_BIT };
    uint32_t count = 1;
    for (; recording && count <= recording->wait_count; count++) {
        memcpy(&waits[count], &recording->waits[count - 1].vk_semaphore, sizeof *waits);
        values[count] = recording->waits[count - 1].value;
        stages[count] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    }
    const VkTimelineSemaphoreSubmitInfo timelines = { .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = count, .pWaitSemaphoreValues = values, .signalSemaphoreValueCount = 2,
        .pSignalSemaphoreValues = done };
    const VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &timelines,
        .waitSemaphoreCount = count, .pWaitSemaphores = waits, .pWaitDstStageMask = stages, .commandBufferCount = 1,
        .pCommandBuffers = &c, .signalSemaphoreCount = 2, .pSignalSemaphores = signals };
    const VkPresentInfoKHR present = { .sType = VK_STRUCTURE_TYPE_PRESENT_INFO_KHR, .waitSemaphoreCount = 1,
        .pWaitSemaphores = &g.rendered[image], .swapchainCount = 1, .pSwapchains = &g.swapchain,
        .pImageIndices = &image };
    TRY(vkQueueSubmit(g.queue, 1, &info, VK_NULL_HANDLE));
    TRY(vkQueuePresentKHR(g.queue, &present));
}

/* One frame, with mlxvk or without it. */
static void frame(double t, bool with, uint64_t writing)
{
    const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                             .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT };
    uint64_t before = ++g.frame > IN_FLIGHT ? g.frame - IN_FLIGHT : 0;
    const VkSemaphoreWaitInfo wait = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1,
                                       .pSemaphores = &g.timeline, .pValues = &before };
    mlxvk_semaphore_value waits[16];
    mlxvk_recording recording = { .done = net.done, .done_value = g.frame, .waits = waits, .wait_room = 16 };
    int slot = (int)(g.frame % IN_FLIGHT);
    uint32_t image;
    TRY(vkWaitSemaphores(g.device, &wait, UINT64_MAX));
    TRY(vkAcquireNextImageKHR(g.device, g.swapchain, UINT64_MAX, g.acquired[slot], VK_NULL_HANDLE, &image));
    TRY(vkBeginCommandBuffer(g.commands[slot], &begin));
    draw_scene(g.commands[slot], t);
    if (with) upscale(g.commands[slot], &recording);
    draw_screen(g.commands[slot], g.images[image], with);
    TRY(vkEndCommandBuffer(g.commands[slot]));
    submit(g.commands[slot], with ? &recording : NULL, image, slot);
    if (with) write_some(writing);
}

/* ==== >>check: what is on the screen beside what should be ======================================================== */

static void read_picture(const struct picture *p, uint8_t *to)
{
    const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO };
    const VkBufferImageCopy copy = { .imageSubresource = { VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1 },
                                     .imageExtent = { (uint32_t)p->w, (uint32_t)p->h, 1 } };
    const VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1,
                                .pCommandBuffers = g.commands };
    TRY(vkQueueWaitIdle(g.queue));
    TRY(vkBeginCommandBuffer(g.commands[0], &begin));
    vkCmdCopyImageToBuffer(g.commands[0], p->image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, g.readback, 1, &copy);
    TRY(vkEndCommandBuffer(g.commands[0]));
    TRY(vkQueueSubmit(g.queue, 1, &info, VK_NULL_HANDLE));
    TRY(vkQueueWaitIdle(g.queue));
    memcpy(to, g.read, (size_t)(p->w * p->h * CHANNELS));
}

static uint8_t seen[H][W][CHANNELS], grown[UP * H][UP * W][CHANNELS], shown[SCREEN_H][SCREEN_W][CHANNELS];

static double pixel(int y, int x, int c) { return y < 0 || y >= H || x < 0 || x >= W ? 0 : seen[y][x][c] / 255.0; }

/* A feature of the network at a pixel, in float64. */
static double feature(int y, int x, int f)
{
    double sum = 0;
    if (y < 0 || y >= H || x < 0 || x >= W) return 0;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) sum += first_weights[f][i][k][f % 3] * pixel(y + i - 1, x + k - 1, f % 3);
    return sum > 0 ? sum : 0;
}

static double network_pixel(int y, int x, int c)
{
    double sum = 0;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            for (int f = c; f < FEATURES; f += 3)
                sum += second_weights[(y % UP * UP + x % UP) * 3 + c][i][k][f] *
                       feature(y / UP + i - 1, x / UP + k - 1, f);
    return 255 * (sum < 0 ? 0 : sum > 1 ? 1 : sum);
}

/* Is the upscaled picture the reference's, and another than the filter's? */
static bool check_upscaled(void)
{
    double most = 0, wanted = 0, found = 0;
    for (int y = 0; y < UP * H; y++)
        for (int x = 0; x < UP * W; x++)
            for (int c = 0; c < 3; c++) {
                double want = network_pixel(y, x, c), is = grown[y][x][c], plain = shown[y][x][c];
                most = fmax(most, fabs(is - want));
                wanted += fabs(want - plain) / (UP * H * UP * W * 3);
                found += fabs(is - plain) / (UP * H * UP * W * 3);
            }
    printf("upscaled: at most %.2f of 255 from the reference; from the filter's %.3f on average, the reference %.3f\n",
           most, found, wanted);
    return most <= 1 && wanted > 0.5 && fabs(found - wanted) < 0.1;
}

/* Does the screen show the network's picture, and each pixel of the text? */
static bool check_screen(const char *text)
{
    int wrong = 0, lit = 0, length = (int)strlen(text);
    for (int y = 0; y < UP * H; y++) wrong += memcmp(shown[y][UP * W], grown[y][0], UP * W * CHANNELS) != 0;
    for (int y = 0; y < 7 * PIXEL; y++)
        for (int x = 0; x < length * ADVANCE && x < TEXT_MOST * ADVANCE; x++) {
            int column = x % ADVANCE / PIXEL;
            bool want = column < 5 && letter_row(text[x / ADVANCE], y / PIXEL) >> (4 - column) & 1;
            wrong += (shown[TEXT_Y + y][TEXT_X + x][1] == 255) != want;
            lit += want;
        }
    printf("screen: %d pixels of %d letters, %d differences\n", lit, length, wrong);
    return !wrong && lit > 0;
}

static void save_picture(const char *path)
{
    png_image image = { .version = PNG_IMAGE_VERSION, .width = SCREEN_W, .height = SCREEN_H,
                        .format = PNG_FORMAT_RGBA };
    if (!png_image_write_to_file(&image, path, 0, shown, 0, NULL)) die("%s: %s", path, image.message);
}

/* ==== >>main ====================================================================================================== */

struct times { double sum, most; int count; };

/* Frames of `with` or without, at most 60 a second unless `fast`; false where the window was closed. */
static bool run(struct times *times, int count, bool with, bool fast, uint64_t writing)
{
    const double per_second = (double)SDL_GetPerformanceFrequency();
    *times = (struct times){ 0 };
    for (int i = 0; i < count; i++) {
        SDL_Event event;
        while (SDL_PollEvent(&event)) if (event.type == SDL_QUIT) return false;
        uint64_t start = SDL_GetPerformanceCounter();
        frame((double)g.frame / 60, with, writing);
        double ms = 1e3 * (double)(SDL_GetPerformanceCounter() - start) / per_second;
        if (i >= IN_FLIGHT) {                        /* the first make pipelines */
            times->sum += ms;
            times->most = fmax(times->most, ms);
            times->count++;
        }
        if (!fast && ms < 1e3 / 60) SDL_Delay((uint32_t)(1e3 / 60 - ms));
    }
    return true;
}

static void say_times(const char *what, const struct times *t)
{
    printf("%-14s %6.2f ms a frame, at most %6.2f (%d frames)\n", what, t->sum / (t->count ? t->count : 1), t->most,
           t->count);
}

static const char usage[] =
    "engine [--frames N] [--fast] [--check] [--picture FILE.png] [--model DIR] [--prompt TEXT] [--budget MS]\n"
    "  --frames   so many without mlxvk, then so many with it (default 600)\n"
    "  --fast     not held to 60 a second\n"
    "  --check    the last frame beside what a reference in float64 makes of it\n"
    "  --picture  the last frame\n"
    "  --budget   milliseconds of GPU time a frame for the language model (default 2)\n";

int main(int argc, char **argv)
{
    const char *model = "tests/models/tiny-qwen3", *prompt = "The ls command lists", *picture = NULL;
    int frames = 600;
    bool fast = false, check = false, ok = true;
    double budget = 2;
    struct times without, with;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--fast")) fast = true;
        else if (!strcmp(argv[i], "--check")) check = true;
        else if (!strcmp(argv[i], "--frames")) { frames = atoi(value); i++; }
        else if (!strcmp(argv[i], "--picture")) { picture = value; i++; }
        else if (!strcmp(argv[i], "--model")) { model = value; i++; }
        else if (!strcmp(argv[i], "--prompt")) { prompt = value; i++; }
        else if (!strcmp(argv[i], "--budget")) { budget = atof(value); i++; }
        else { fputs(usage, stderr); return 2; }
    }
    open_engine();
    open_network();
    open_writer(model, prompt);
    if (run(&without, frames, false, fast, 0) && run(&with, frames, true, fast, (uint64_t)(1e6 * budget))) {
        say_times("without mlxvk", &without);
        say_times("with mlxvk", &with);
        printf("\"%s\"\n%llu tokens, each in %d frames at most\n", w.text.data, (unsigned long long)w.tokens,
               w.slices_most);
        read_picture(&g.scene, &seen[0][0][0]);
        read_picture(&g.upscaled, &grown[0][0][0]);
        read_picture(&g.screen, &shown[0][0][0]);
        char line[TEXT_MOST + 1];
        snprintf(line, sizeof line, "%.*s", (int)w.drawn, w.text.data);
        if (check) ok = check_upscaled() & check_screen(line);
        if (check && w.drawn <= strlen(prompt) + 8) { printf("the model wrote too little\n"); ok = false; }
        if (picture) save_picture(picture);
    }
    TRY(vkQueueWaitIdle(g.queue));
    close_writer();
    close_network();
    close_engine();
    return !ok;
}
