/* The world a stub library shows, read from the file that STUB_SCENARIO names.
 *
 * One "key value..." per line. The file is looked at again at every call and re-read when it changed, so a test can
 * change the world under a running reader (replace the file, do not write into it).
 *
 * What a call does besides answering, for all devices or for one:
 *   call.FUNCTION hang | crash | sleep SECONDS | error CODE
 *   gpu.N.call.FUNCTION ...
 */
#ifndef SCENARIO_H
#define SCENARIO_H

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define VALUE_BYTES 512

static pthread_mutex_t scenario_lock = PTHREAD_MUTEX_INITIALIZER;
static char scenario_text[65536];
static struct stat scenario_seen;

static void scenario_refresh(void)
{
    const char *path = getenv("STUB_SCENARIO");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0) {
        scenario_text[0] = '\0';
        return;
    }
    if (now.st_ino == scenario_seen.st_ino && now.st_mtim.tv_nsec == scenario_seen.st_mtim.tv_nsec &&
        now.st_mtim.tv_sec == scenario_seen.st_mtim.tv_sec)
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    scenario_text[fread(scenario_text, 1, sizeof scenario_text - 1, file)] = '\0';
    scenario_seen = now;
    fclose(file);
}

/* The value of a key, in this thread's own buffer until its next lookup; NULL when the scenario does not say. */
static const char *scenario_get(const char *format, ...)
{
    static __thread char value[VALUE_BYTES];
    char key[128];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(key, sizeof key - 1, format, args);
    va_end(args);
    key[length++] = ' ';
    const char *found = NULL;
    pthread_mutex_lock(&scenario_lock);
    scenario_refresh();
    for (const char *line = scenario_text; line != NULL && *line; line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, key, length) == 0) {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line + length, "\n"), line + length);
            found = value;
            break;
        }
    pthread_mutex_unlock(&scenario_lock);
    return found;
}

static unsigned long long scenario_number(const char *text, unsigned long long otherwise)
{
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static int scenario_act(const char *what)
{
    double seconds;
    if (what == NULL)
        return 0;
    if (strcmp(what, "hang") == 0)
        for (;;)
            pause();
    if (strcmp(what, "crash") == 0)
        raise(SIGSEGV);
    if (sscanf(what, "sleep %lf", &seconds) == 1)
        usleep((useconds_t)(seconds * 1e6));
    return strncmp(what, "error ", 6) == 0 ? atoi(what + 6) : 0;
}

/* Misbehave as the scenario says; the error code to return, 0 to go on. gpu < 0: the call concerns no device. */
static int scenario_behave(const char *function, int gpu)
{
    int code = scenario_act(scenario_get("call.%s", function));
    if (code == 0 && gpu >= 0)
        code = scenario_act(scenario_get("gpu.%d.call.%s", gpu, function));
    return code;
}

#endif
