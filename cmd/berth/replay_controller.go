package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-k8s/berth/internal/controller/journal"
	enginejournal "github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// journals returns the files that the arguments name, those of a folder the oldest first, and which
// of them the controllers wrote, each into its own subfolder.
func journals(args []string) (files []string, ofControllers map[string]bool, err error) {
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

// fits rejects flags that have no meaning for one of the journals.
func (r *replay) fits(files []string, ofControllers map[string]bool) error {
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

// controllers returns the function that replays journals of the controllers, one after the other.
func (r *replay) controllers(out io.Writer) func(_, stderr io.Writer, file string) (replayed, error) {
	o := journal.Options{On: r.goOn || r.tells()}
	if r.tells() {
		o.Story = &journal.Story{Out: noticed{out, &r.told}, Node: r.node}
		if r.pod != "" {
			o.Story.Pod = r.podName()
		}
	}
	return func(_, stderr io.Writer, file string) (one replayed, err error) {
		f, err := os.Open(file)
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
