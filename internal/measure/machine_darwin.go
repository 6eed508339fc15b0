package measure

import "syscall"

// cpuModel asks the kernel for the brand of the processor.
func cpuModel() string {
	model, err := syscall.Sysctl("machdep.cpu.brand_string")
	if err != nil {
		return ""
	}
	return model
}
