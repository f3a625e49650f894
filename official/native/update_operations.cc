// The operations BertUpdate and BertGlobalNorm: an optimizer's update of any number of variables, and the norm of
// their gradients, in one pass over the memory (LAMB: two).
//
// All variables are cut into chunks, a list of jobs that TensorFlow's threads take one after the other. What is
// added up is added up chunk by chunk in the order of the chunks, so that results do not depend on the threads.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "jobs.h"
#include "update.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace bert {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

constexpr int64_t kChunk = 32 * kTile;

int64_t chunks_of(int64_t count) { return (count + kChunk - 1) / kChunk; }

// A tensor of one of the types that gradients and copies have, as a place in memory.
struct Place {
  DataType type = tensorflow::DT_INVALID;
  void* data = nullptr;

  Place() = default;
  explicit Place(const Tensor& tensor)
      : type(tensor.dtype()), data(const_cast<char*>(tensor.tensor_data().data())) {}

  template <typename T>
  T* at(int64_t offset) const {
    return static_cast<T*>(data) + offset;
  }

  // Returns the float32 numbers from `offset` on, in `space` where they are of another type.
  const float* read(int64_t offset, int64_t count, float* space) const {
    if (type == tensorflow::DT_FLOAT) return at<float>(offset);
    if (type == tensorflow::DT_HALF) widen(at<Half>(offset), count, space);
    if (type == tensorflow::DT_BFLOAT16) widen(at<BFloat16>(offset), count, space);
    return space;
  }

  double sum_of_squares(int64_t offset, int64_t count) const {
    if (type == tensorflow::DT_FLOAT) return bert::sum_of_squares(at<float>(offset), count);
    if (type == tensorflow::DT_HALF) return bert::sum_of_squares(at<Half>(offset), count);
    return bert::sum_of_squares(at<BFloat16>(offset), count);
  }

  void write(const float* from, int64_t offset, int64_t count) const {
    if (type == tensorflow::DT_HALF) narrow(from, count, at<Half>(offset));
    if (type == tensorflow::DT_BFLOAT16) narrow(from, count, at<BFloat16>(offset));
  }
};

Run shifted(Run run, int64_t offset) { return {run.in + offset, run.out + offset}; }

// A variable with its moments, its gradient and, in mixed precision, its copy in the type that is computed in.
struct Weight {
  Run w, m, v;
  Place gradient, copy;
  int64_t count = 0;
  bool decays = false;
  std::vector<Squares> squares;  // of each chunk
  std::unique_ptr<std::atomic<int64_t>> waiting;  // chunks whose squares are missing
};

struct Job {
  Weight* weight;
  int64_t chunk;
  bool finishes;  // the second pass of LAMB
};

template <typename Body>
void for_tiles(const Job& job, Body body) {
  const int64_t begin = job.chunk * kChunk, end = std::min(begin + kChunk, job.weight->count);
  for (int64_t at = begin; at < end; at += kTile) body(at, std::min(kTile, end - at));
}

void update_at_once(const Numbers& n, const Job& job) {
  const Weight& weight = *job.weight;
  alignas(64) float space[kTile];
  for_tiles(job, [&](int64_t at, int64_t count) {
    const float* gradient = weight.gradient.read(at, count, space);
    const Run w = shifted(weight.w, at);
    adam(n, gradient, count, w, shifted(weight.m, at), shifted(weight.v, at), weight.decays ? n.kept : 1.0f);
    weight.copy.write(w.out, at, count);
  });
}

void begin_lamb(const Numbers& n, const Job& job) {
  Weight& weight = *job.weight;
  alignas(64) float space[kTile];
  Squares squares;
  for_tiles(job, [&](int64_t at, int64_t count) {
    const float* gradient = weight.gradient.read(at, count, space);
    const float* w = weight.w.in + at;
    lamb_moments(n, gradient, count, w, shifted(weight.m, at), shifted(weight.v, at), &squares);
  });
  weight.squares[job.chunk] = squares;
  weight.waiting->fetch_sub(1, std::memory_order_release);
}

void finish_lamb(const Numbers& n, const Job& job) {
  const Weight& weight = *job.weight;
  while (weight.waiting->load(std::memory_order_acquire) > 0) std::this_thread::yield();
  Squares sum;
  for (const Squares& squares : weight.squares) {
    sum.weight += squares.weight;
    sum.update += squares.update;
  }
  const float weight_norm = std::sqrt(sum.weight), update_norm = std::sqrt(sum.update);
  const float ratio = weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1.0f;
  for_tiles(job, [&](int64_t at, int64_t count) {
    const Run w = shifted(weight.w, at);
    lamb_weights(n, count, w, weight.m.out + at, weight.v.out + at, n.rate * ratio);
    weight.copy.write(w.out, at, count);
  });
}

// Returns the jobs of an update in an order in which each can wait for those before it. The second pass of a
// variable comes after the first of the next one: late enough that it need not wait, and early enough to find
// something of it in a cache.
std::vector<Job> jobs_of(std::vector<Weight>& weights, bool is_lamb) {
  std::vector<Job> jobs;
  const auto add = [&jobs](Weight* weight, bool finishes) {
    for (int64_t chunk = 0; weight != nullptr && chunk < chunks_of(weight->count); ++chunk)
      jobs.push_back({weight, chunk, finishes});
  };
  Weight* before = nullptr;
  for (Weight& weight : weights) {
    add(&weight, false);
    if (!is_lamb || !weight.decays) continue;
    weight.squares.resize(chunks_of(weight.count));
    weight.waiting = std::make_unique<std::atomic<int64_t>>(chunks_of(weight.count));
    add(before, true);
    before = &weight;
  }
  add(before, true);
  return jobs;
}

// The variables of an operation: looked up, locked, and with places to write to.
class Variables {
 public:
  explicit Variables(OpKernelContext* context) : context_(context) {}

  // Looks up the resources of an input. Call `lock` before anything else.
  void find(const char* input, std::vector<Var*>* found) {
    tensorflow::OpInputList handles;
    OP_REQUIRES_OK(context_, context_->input_list(input, &handles));
    for (const Tensor& handle : handles) {
      tensorflow::core::RefCountPtr<Var> variable;
      const auto& resource = handle.scalar<tensorflow::ResourceHandle>()();
      OP_REQUIRES_OK(context_, tensorflow::LookupResource(context_, resource, &variable));
      found->push_back(variable.get());
      held_.push_back(std::move(variable));
    }
  }

  void lock() {
    std::vector<tensorflow::mutex*> mutexes;
    for (const auto& variable : held_) mutexes.push_back(variable->mu());
    std::sort(mutexes.begin(), mutexes.end());  // everybody in one order
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    for (auto* mutex : mutexes) locks_.push_back(std::make_unique<tensorflow::mutex_lock>(*mutex));
  }

  // Gives a variable memory of its own where somebody else still reads the old one.
  void place(Var* variable, int64_t count, const void** in, void** out) {
    Tensor* tensor = variable->tensor();
    OP_REQUIRES(
        context_,
        variable->is_initialized && tensor->NumElements() == count,
        tensorflow::errors::InvalidArgument(
            "BertUpdate: a variable of shape ", tensor->shape().DebugString(), " and a gradient of ", count,
            " elements"));
    *in = tensor->tensor_data().data();
    if (!tensor->RefCountIsOne() && !variable->copy_on_read_mode.load()) {
      Tensor fresh;
      OP_REQUIRES_OK(context_, context_->allocate_temp(tensor->dtype(), tensor->shape(), &fresh));
      read_by_others_.push_back(*tensor);
      *tensor = fresh;
    }
    *out = const_cast<char*>(tensor->tensor_data().data());
  }

  void place(Var* variable, int64_t count, Run* run) {
    OP_REQUIRES(
        context_,
        variable->tensor()->dtype() == tensorflow::DT_FLOAT,
        tensorflow::errors::InvalidArgument("BertUpdate: variables and moments are float32"));
    const void* in = nullptr;
    void* out = nullptr;
    place(variable, count, &in, &out);
    *run = {static_cast<const float*>(in), static_cast<float*>(out)};
  }

 private:
  OpKernelContext* context_;
  std::vector<tensorflow::core::RefCountPtr<Var>> held_;
  std::vector<Tensor> read_by_others_;
  std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks_;  // unlocked first
};

class Update : public OpKernel {
 public:
  explicit Update(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("layerwise", &layerwise_));
    OP_REQUIRES_OK(context, context->GetAttr("decays", &decays_));
    OP_REQUIRES_OK(context, context->GetAttr("copy_of", &copy_of_));
    OP_REQUIRES_OK(context, context->GetAttr("beta_1", &constants_.beta_1));
    OP_REQUIRES_OK(context, context->GetAttr("beta_2", &constants_.beta_2));
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &constants_.epsilon));
    OP_REQUIRES_OK(context, context->GetAttr("weight_decay", &constants_.weight_decay));
  }

  void Compute(OpKernelContext* context) override {
    Variables variables(context);
    std::vector<Weight> weights;
    find(context, &variables, &weights);
    if (!context->status().ok()) return;
    const Numbers numbers = numbers_of(context);
    if (!context->status().ok()) return;
    const std::vector<Job> jobs = jobs_of(weights, layerwise_);
    do_in_order(context, jobs.size(), [&](int64_t index) {
      const Job& job = jobs[index];
      if (job.finishes) return finish_lamb(numbers, job);
      return layerwise_ && job.weight->decays ? begin_lamb(numbers, job) : update_at_once(numbers, job);
    });
  }

 private:
  void find(OpKernelContext* context, Variables* variables, std::vector<Weight>* weights) const {
    std::vector<Var*> w, m, v, copies;
    variables->find("weights", &w);
    variables->find("m", &m);
    variables->find("v", &v);
    variables->find("copies", &copies);
    tensorflow::OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    if (!context->status().ok()) return;
    OP_REQUIRES(
        context,
        decays_.size() == w.size() && gradients.size() == static_cast<int>(w.size()) &&
            copy_of_.size() == copies.size(),
        tensorflow::errors::InvalidArgument("BertUpdate: lists of different lengths"));
    variables->lock();
    weights->resize(w.size());
    for (size_t i = 0; i < w.size() && context->status().ok(); ++i) {
      Weight& weight = (*weights)[i];
      weight.gradient = Place(gradients[i]);
      weight.count = gradients[i].NumElements();
      weight.decays = decays_[i];
      variables->place(w[i], weight.count, &weight.w);
      variables->place(m[i], weight.count, &weight.m);
      variables->place(v[i], weight.count, &weight.v);
    }
    for (size_t i = 0; i < copies.size() && context->status().ok(); ++i) {
      const void* in = nullptr;
      Weight& weight = weights->at(copy_of_[i]);
      weight.copy.type = copies[i]->tensor()->dtype();
      variables->place(copies[i], weight.count, &in, &weight.copy.data);
    }
  }

  Numbers numbers_of(OpKernelContext* context) const {
    Numbers numbers = constants_;
    const Tensor& step = context->input(context->num_inputs() - 1);
    if (step.NumElements() != 7) {
      context->CtxFailure(tensorflow::errors::InvalidArgument("BertUpdate: 7 numbers describe a step"));
      return numbers;
    }
    const float* given = step.flat<float>().data();
    float* const taken[] = {
        &numbers.factor, &numbers.step_size, &numbers.kept, &numbers.epsilon_beside_root,
        &numbers.rate, &numbers.m_correction, &numbers.v_correction};
    for (int i = 0; i < 7; ++i) *taken[i] = given[i];
    return numbers;
  }

  bool layerwise_;
  std::vector<bool> decays_;
  std::vector<int> copy_of_;
  Numbers constants_{};
};

class GlobalNorm : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    struct Part {
      Place place;
      int64_t begin, count;
      double sum;
    };
    std::vector<Part> parts;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Tensor& tensor = context->input(i);
      for (int64_t begin = 0; begin < tensor.NumElements(); begin += kChunk)
        parts.push_back({Place(tensor), begin, std::min(kChunk, tensor.NumElements() - begin), 0.0});
    }
    do_in_order(context, parts.size(), [&parts](int64_t index) {
      Part& part = parts[index];
      part.sum = part.place.sum_of_squares(part.begin, part.count);
    });
    double sum = 0;
    for (const Part& part : parts) sum += part.sum;
    Tensor* norm = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &norm));
    norm->scalar<float>()() = static_cast<float>(std::sqrt(sum));
  }
};

REGISTER_OP("BertUpdate")
    .Doc("Updates variables in place. step: factor of the gradients, step size, share kept, epsilon beside the root,"
         " learning rate, corrections of m and v.")
    .Attr("layerwise: bool")
    .Attr("decays: list(bool)")
    .Attr("copy_of: list(int)")
    .Attr("beta_1: float")
    .Attr("beta_2: float")
    .Attr("epsilon: float")
    .Attr("weight_decay: float")
    .Attr("N: int >= 1")
    .Attr("C: int >= 0")
    .Attr("T: list({float, bfloat16, half}) >= 1")
    .Input("weights: N * resource")
    .Input("m: N * resource")
    .Input("v: N * resource")
    .Input("copies: C * resource")
    .Input("gradients: T")
    .Input("step: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("BertGlobalNorm")
    .Attr("T: list({float, bfloat16, half}) >= 1")
    .Input("tensors: T")
    .Output("norm: float")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_KERNEL_BUILDER(Name("BertUpdate").Device(tensorflow::DEVICE_CPU), Update);
REGISTER_KERNEL_BUILDER(Name("BertGlobalNorm").Device(tensorflow::DEVICE_CPU), GlobalNorm);

}  // namespace
}  // namespace bert
