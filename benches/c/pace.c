/* How fast the CPUs are now, while nothing of ours runs: pace CPU... prints for each how many steps a microsecond a fixed mix of
 * additions, multiplications and loads from the nearest cache makes there, all CPUs at once. A neighbour that shares a core with one
 * of them (hyper-threads that a hypervisor lends to different guests) takes part of exactly these, and no counter here says so. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 64, STEPS = 4000, BLOCKS = 240, WORDS = 1024 };

struct place {
    int cpu;
    double pace;
};

static pthread_barrier_t together;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Six chains that do not wait for each other: as many instructions a cycle as a core can begin. */
static uint64_t block(const uint64_t *words)
{
    uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
    for (int i = 0; i < STEPS; i++) {
        a += words[i % WORDS];
        b ^= words[(i + 64) % WORDS];
        c = c * 3 + 1;
        d += i ^ 0x55;
        e ^= i + 7;
        f += words[(i + 512) % WORDS] ^ i;
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
    }
    return a ^ b ^ c ^ d ^ e ^ f;
}

static void *run(void *argument)
{
    struct place *place = argument;
    static _Thread_local uint64_t words[WORDS];
    volatile uint64_t kept = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(place->cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
    for (int i = 0; i < WORDS; i++)
        words[i] = i;
    for (int i = 0; i < BLOCKS / 8; i++)
        kept += block(words);
    pthread_barrier_wait(&together);
    double begin = now_us();
    for (int i = 0; i < BLOCKS; i++)
        kept += block(words);
    place->pace = STEPS * (double)BLOCKS / (now_us() - begin);
    return NULL;
}

int main(int count, char **words)
{
    struct place places[MOST];
    pthread_t threads[MOST];
    int many = count - 1;
    if (many < 1 || many > MOST) {
        fprintf(stderr, "usage: pace CPU...\n");
        return 2;
    }
    pthread_barrier_init(&together, NULL, many);
    for (int i = 0; i < many; i++) {
        places[i].cpu = atoi(words[i + 1]);
        if (pthread_create(&threads[i], NULL, run, &places[i]) != 0) {
            perror("pthread_create");
            return 1;
        }
    }
    for (int i = 0; i < many; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < many; i++)
        printf("%s%.1f", i ? " " : "", places[i].pace);
    printf("\n");
    return 0;
}
