package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// ensureCompiler makes sure that the race detector can be linked, which needs
// a C compiler everywhere but on darwin. When none is found it installs one,
// if that is possible: as root on a system with apt-get.
func ensureCompiler(ctx context.Context, w io.Writer) error {
	if runtime.GOOS == "darwin" || haveCompiler(ctx) {
		return nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return errors.New("the race detector needs a C compiler and none was found; " +
			"install gcc or clang (Debian, Ubuntu: apt-get install gcc libc6-dev; Alpine: apk add gcc musl-dev; Fedora: dnf install gcc; Windows: mingw-w64), " +
			"or run without it: make test RACE=false")
	}
	fmt.Fprintln(w, "no C compiler for the race detector: installing gcc with apt-get")
	for _, args := range [][]string{{"update", "-q"}, {"install", "-y", "-q", "--no-install-recommends", "gcc", "libc6-dev"}} {
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	if !haveCompiler(ctx) {
		return errors.New("gcc was installed and still no C compiler is found")
	}
	return nil
}

func haveCompiler(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, "go", "env", "CC").Output()
	words := strings.Fields(string(out))
	if err != nil || len(words) == 0 {
		return false
	}
	_, err = exec.LookPath(words[0])
	return err == nil
}
