package measure

import (
	"os"
	"strings"
)

// cpuModel returns the first model name of /proc/cpuinfo; some architectures
// have none.
func cpuModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return value
		}
	}
	return ""
}
