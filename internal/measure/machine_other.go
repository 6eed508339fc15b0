//go:build !linux && !darwin

package measure

import "os"

// cpuModel returns what Windows says of the processor; elsewhere it is "".
func cpuModel() string { return os.Getenv("PROCESSOR_IDENTIFIER") }
