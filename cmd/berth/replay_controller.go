package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/journal"
	enginejournal "github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/owned"
)

// findJournals returns the files that the arguments name, those of a folder the oldest first, and
// which of them the controllers wrote, each into its own subfolder.
func findJournals(args []string) (files []string, ofControllers map[string]bool, err error) {
	ofControllers = map[string]bool{}
	for _, arg := range args {
		of, err := journalsAt(arg)
		if err != nil {
			return nil, nil, err
		}
		for _, file := range of {
			if ofControllers[file], err = records.Begins(file, journal.Magic); err != nil {
				return nil, nil, err
			}
		}
		files = append(files, of...)
	}
	return files, ofControllers, nil
}

func journalsAt(arg string) (files []string, err error) {
	info, err := os.Stat(arg)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{arg}, nil
	}

	for _, dir := range []string{arg, filepath.Join(arg, journal.Eviction), filepath.Join(arg, journal.NodeHealth)} {
		of, err := records.Files(dir)
		if err != nil {
			return nil, err
		}
		files = append(files, of...)
	}

	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no journal there; berth scheduler --journal %s writes one", arg, arg)
	}
	return files, nil
}

// gap is what is missing of a journal before one of its files.
type gap struct {
	name string // of the file that is not there; "": it is
	lost int    // records, since the disk did not keep up
	ends time.Time
}

func (g gap) String() string {
	if g.name != "" {
		return g.name + " is missing"
	}
	return answer.Count(g.lost, "event") + " were lost, since the disk did not keep up"
}

// findGaps returns what is missing before files, by their names. Before the oldest of a folder
// nothing is: it is removed first.
func findGaps(files []string, ofControllers map[string]bool) map[string]gap {
	there, older, missing := map[string]bool{}, map[string]bool{}, map[string]gap{}
	for _, file := range files {
		there[filepath.Clean(file)] = true
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		began, continues, lost := readExtent(file, ofControllers[file])
		if lost > 0 {
			missing[file] = gap{lost: lost, ends: began}
		}
		if name := records.Name(continues); !continues.IsZero() && older[dir] && !there[filepath.Join(dir, name)] {
			missing[file] = gap{name, lost, began}
		}
		older[dir] = true
	}
	return missing
}

// readExtent returns when a file began, and the one that it continues, and what was lost before it;
// the zero values if it cannot be read, which playing it says.
func readExtent(file string, ofControllers bool) (began, continues time.Time, lost int) {
	f, err := owned.Open(file)
	if err != nil {
		return began, continues, 0
	}
	defer f.Close()
	if ofControllers {
		if in, err := journal.NewReader(f); err == nil {
			began, continues, lost = in.Header.Began, in.Header.Continues, in.Header.Lost
		}
	} else if in, err := enginejournal.NewReader(f); err == nil {
		began, continues, lost = in.Header.Began, in.Header.Continues, in.Header.Lost
	}
	return began, continues, lost
}

// checkFlags rejects flags that have no meaning for one of the journals.
func (r *replay) checkFlags(files []string, ofControllers map[string]bool) error {
	for _, file := range files {
		switch {
		case ofControllers[file] && r.config != "":
			return usagef("--config: %s is a journal of the controllers; only the scheduler has such a configuration", file)
		case !ofControllers[file] && r.node != "":
			return usagef("--node: %s is a journal of the scheduler; only those of the controllers tell of nodes", file)
		}
	}
	return nil
}

// replayControllers returns the function that replays journals of the controllers, one after the
// other.
func (r *replay) replayControllers(out io.Writer) func(_, stderr io.Writer, file string) (replayed, error) {
	o := journal.Options{On: r.goOn || r.wantsStory()}
	if r.wantsStory() {
		o.Story = &journal.Story{Out: out, Node: r.node}
		if r.pod != "" {
			o.Story.Pod = r.podName()
		}
	}

	return func(_, stderr io.Writer, file string) (one replayed, err error) {
		f, err := owned.Open(file)
		if err != nil {
			return one, err
		}
		defer f.Close()
		in, err := journal.NewReader(f)
		if err != nil {
			return one, err
		}
		o := o
		if o.Story == nil {
			each, stop := replayMeter(stderr, file)
			defer stop()
			o.Each = each
		}
		began := time.Now()
		result, err := journal.Replay(in, o)
		return replayedIn(file, in.Header.Component, enginejournal.Result{Result: result}, began), err
	}
}
