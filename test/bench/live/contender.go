package live

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-k8s/berth/test/internal/plane"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Contender is a scheduler to be measured.
type Contender struct {
	Name string // as in the tables
	Key  string // as in names of namespaces, and in Options
	// start starts it with a configuration file, and flags that both have.
	start func(b *bench, config string, flags []string) (*process.Process, error)
}

// Contenders in the order in which they are measured.
var Contenders = []Contender{
	{Name: "kube-scheduler", Key: "upstream", start: func(b *bench, config string, flags []string) (*process.Process, error) {
		return b.launchProgram("kube-scheduler", slices.Concat([]string{"--config", config}, flags)...)
	}},
	{Name: "Berth", Key: "berth", start: func(b *bench, config string, flags []string) (*process.Process, error) {
		return b.launchProgram(b.Berth[0], slices.Concat(b.Berth[1:], []string{"--config", config, "--kubeconfig", b.kubeconfig}, flags)...)
	}},
}

// berthScheduler is the program that has the scheduler alone, if it is there, as berth up prefers
// it, or else berth itself.
func berthScheduler(binaries string) []string {
	const alone = "berth-scheduler"
	if _, err := os.Stat(filepath.Join(binaries, alone)); err == nil {
		return []string{alone}
	}
	return []string{"berth", "scheduler"}
}

// chosenContenders are the chosen ones.
func (b *bench) chosenContenders() (list []*Contender) {
	for i := range Contenders {
		if len(b.Schedulers) == 0 || slices.Contains(b.Schedulers, Contenders[i].Key) {
			list = append(list, &Contenders[i])
		}
	}
	return list
}

// schedulerFile has the configuration, which is the same for both.
func (b *bench) schedulerFile() (string, error) {
	file := filepath.Join(b.dir, "scheduler.yaml")
	return file, os.WriteFile(file, plane.SchedulerConfig(b.kubeconfig), 0o600)
}

// startScheduler starts a contender that serves nothing.
func (b *bench) startScheduler(c *Contender) (*process.Process, error) {
	return b.startSchedulerWith(c, "--secure-port", "0")
}

// startSchedulerWith starts a contender with flags.
func (b *bench) startSchedulerWith(c *Contender, flags ...string) (*process.Process, error) {
	file, err := b.schedulerFile()
	if err != nil {
		return nil, err
	}
	return c.start(b, file, flags)
}
