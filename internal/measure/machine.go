package measure

import (
	"runtime"
	"strings"
)

// A Machine is where figures come from. It holds nothing that names one
// machine among others of its kind.
type Machine struct {
	CPU   string `json:"cpu"` // model; "" where the system does not tell
	Cores int    `json:"cores"`
	Procs int    `json:"gomaxprocs"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Go    string `json:"go"`
}

// This returns the machine that the program runs on.
func This() *Machine {
	return &Machine{
		CPU: strings.Join(strings.Fields(cpuModel()), " "), Cores: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
		OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version(),
	}
}
