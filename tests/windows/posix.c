/* POSIX by Windows' functions, as far as posix.h and the headers beside it say. */
#include "dlfcn.h"
#include "glob.h"
#include "posix.h"
#include "sys/mman.h"

#include <errno.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

/* What the program is told (getenv) and what libraries ask Windows for are kept apart by the C library. */
int setenv(const char *name, const char *value, int overwrite)
{
    if (!overwrite && getenv(name)) return 0;
    SetEnvironmentVariableA(name, *value ? value : NULL);
    return _putenv_s(name, value);
}

int unsetenv(const char *name) { return setenv(name, "", 1); }

long sysconf(int name)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return name == _SC_NPROCESSORS_ONLN ? (long)info.dwNumberOfProcessors : -1;
}

char *mkdtemp(char *path)
{
    char *name = strrchr(path, '/') + 1;
    memmove(path, name, strlen(name) + 1);
    return _mktemp(path) && CreateDirectoryA(path, NULL) ? path : NULL;
}

unsigned alarm(unsigned seconds) { return seconds - seconds; }

/* ---- libraries ---- */

void *dlopen(const char *path, int flags)
{
    (void)flags;
    return (void *)LoadLibraryA(strcmp(path, "libvulkan.so.1") ? path : "vulkan-1.dll");
}

void *dlsym(void *library, const char *name)
{
    FARPROC function = GetProcAddress((HMODULE)library, name);
    void *pointer;
    memcpy(&pointer, &function, sizeof pointer);
    return pointer;
}

int dlclose(void *library) { return !FreeLibrary((HMODULE)library); }

/* ---- files ---- */

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    HANDLE mapping = CreateFileMappingA((HANDLE)_get_osfhandle(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    void *view = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, (DWORD)offset, size) : NULL;
    (void)address, (void)protection, (void)flags;
    if (mapping) CloseHandle(mapping);                              /* the view keeps it */
    if (!view) errno = EINVAL;
    return view ? view : MAP_FAILED;
}

int munmap(void *address, size_t size)
{
    (void)size;
    return !UnmapViewOfFile(address);
}

static void unquote(char *to, const char *from)
{
    for (; *from; from++) if (*from != '\\') *to++ = *from;
    *to = 0;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int glob(const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found)
{
    char path[MAX_PATH];
    WIN32_FIND_DATAA entry;
    (void)flags, (void)failed;
    *found = (glob_t){ 0 };
    if (strlen(pattern) >= sizeof path) return 1;
    unquote(path, pattern);
    HANDLE search = FindFirstFileA(path, &entry);
    char *slash = strrchr(path, '/');
    slash[1] = 0;
    for (BOOL more = search != INVALID_HANDLE_VALUE; more; more = FindNextFileA(search, &entry)) {
        size_t size = strlen(path) + strlen(entry.cFileName) + 1;
        found->gl_pathv = realloc(found->gl_pathv, (found->gl_pathc + 1) * sizeof *found->gl_pathv);
        char *name = malloc(size);
        if (!found->gl_pathv || !name) abort();
        snprintf(name, size, "%s%s", path, entry.cFileName);
        found->gl_pathv[found->gl_pathc++] = name;
    }
    if (search != INVALID_HANDLE_VALUE) FindClose(search);
    if (found->gl_pathc) qsort(found->gl_pathv, found->gl_pathc, sizeof *found->gl_pathv, by_name);
    return !found->gl_pathc;
}

void globfree(glob_t *found)
{
    for (size_t i = 0; i < found->gl_pathc; i++) free(found->gl_pathv[i]);
    free(found->gl_pathv);
}
