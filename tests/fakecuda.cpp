// What a CPU-only torch lacks to run fake tensors on a CUDA device: see fakecuda.py. Nothing is
// computed here and no memory is taken; these are the answers that torch asks a device for.
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace at {

// torch looks this class up by its name
struct CUDAHooks : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks)

// without a guard the threads of backward refuse to go to the device
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>)

namespace accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return c10::kCUDA; }
}

namespace native {
// The kernel that a GPU of 2020 or later takes: flash (1) in half precision without a mask, or else
// the memory-efficient one (2). Without this torch would take the plain one (0), of T x T weights.
static int64_t choose(const Tensor& query, const Tensor&, const Tensor&,
                      const std::optional<Tensor>& mask, double, bool, std::optional<double>, bool) {
  bool half = query.scalar_type() == kBFloat16 || query.scalar_type() == kHalf;
  return half && !mask.has_value() ? 1 : 2;
}
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &choose)
}

}
