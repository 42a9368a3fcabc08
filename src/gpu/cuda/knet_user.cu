// The kernel `user`: linked with the user's PTX when it is loaded.
#include "batch.cuh"
#include "user.cuh"

extern "C" __global__ void knet_user_launch(struct knet_batch* batch) { knet::launch<knet::user>(batch); }
extern "C" __global__ void knet_user_persistent(struct knet_ring* ring) { knet::persist<knet::user>(ring); }
