// How operations of our own share out their work to TensorFlow's threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "tensorflow/core/framework/op_kernel.h"

namespace bert {

// Does the jobs 0 ... count - 1 on the caller's thread and those of TensorFlow's pool that are free; returns when
// all are done. They begin in their order, so a job may wait for those before it.
inline void do_in_order(tensorflow::OpKernelContext* context, int64_t count, std::function<void(int64_t)> job) {
  struct State {
    std::function<void(int64_t)> job;
    int64_t count;
    std::atomic<int64_t> next{0}, done{0};
    // A thread of the pool that comes when there are no jobs left finds this struct only.
    void work() {
      for (int64_t i; (i = next.fetch_add(1)) < count; done.fetch_add(1, std::memory_order_release)) job(i);
    }
  };
  auto state = std::make_shared<State>();
  state->job = std::move(job);
  state->count = count;
  const auto* pool = context->device()->tensorflow_cpu_worker_threads();
  const int64_t helpers = std::min<int64_t>(pool->num_threads, count) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool->workers->Schedule([state] { state->work(); });
  state->work();
  while (state->done.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

}  // namespace bert
