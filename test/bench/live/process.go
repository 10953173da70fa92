package live

import (
	"fmt"
	"path/filepath"

	"github.com/berth-k8s/berth/test/internal/process"
)

// launchProgram starts a program of the folder with the binaries. Its output goes to a file of its
// name.
func (b *bench) launchProgram(name string, args ...string) (*process.Process, error) {
	p, err := process.Start(filepath.Join(b.Binaries, name), filepath.Join(b.dir, name+".log"), args...)
	if err != nil {
		return nil, fmt.Errorf("%w: build it first, as make bench-live does", err)
	}
	return p, nil
}
