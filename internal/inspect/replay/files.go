// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/controllerjournal"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/owned"
)

// File is a journal.
type File struct {
	Path        string
	Controllers bool // written by the controllers, not the scheduler
	Gap
}

// Gap describes the missing part of a journal before one of its files.
type Gap struct {
	// Missing is the preceding file, if it is missing although older files exist.
	Missing string `json:"missing,omitempty"`
	// Lost is the number of records lost before this file because the disk was too slow.
	Lost int `json:"lost,omitempty"`

	ends time.Time
}

func (g Gap) isEmpty() bool { return g.Missing == "" && g.Lost == 0 }

func (g Gap) String() string {
	if g.Missing != "" {
		return g.Missing + " is missing"
	}
	return answer.Count(g.Lost, "event") + " were lost, since the disk did not keep up"
}

// print describes the missing part before a file.
func (g Gap) print(page *answer.Page, path string) {
	if !g.isEmpty() {
		page.Warning("before %s, %s: that is not replayed", filepath.Base(path), g)
	}
}

// PrintGap prints the gap before a file into a story.
func (f *File) PrintGap(out io.Writer) {
	if !f.isEmpty() {
		records.WriteLine(out, f.ends, f.String()+": events before this point are not known")
	}
}

// Find returns the files named by the arguments, and the files of named folders, the oldest first.
// Each controller writes its journal into a subfolder.
func Find(args []string) (files []File, err error) {
	for _, arg := range args {
		paths, err := journalsAt(arg)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			controllers, err := records.Begins(path, controllerjournal.Magic)
			if err != nil {
				return nil, err
			}
			files = append(files, File{Path: path, Controllers: controllers})
		}
	}
	findGaps(files)
	return files, nil
}

func journalsAt(arg string) (files []string, err error) {
	info, err := os.Stat(arg)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{arg}, nil
	}

	for _, dir := range []string{arg, filepath.Join(arg, controllerjournal.Eviction), filepath.Join(arg, controllerjournal.NodeHealth)} {
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

// findGaps records the gap before each file, as described by the file's header. The oldest file of
// a folder has no gap, since old files are removed first. An unreadable file has no gap: playing it
// reports the reason.
func findGaps(files []File) {
	there, older := map[string]bool{}, map[string]bool{}
	for i := range files {
		there[filepath.Clean(files[i].Path)] = true
	}
	for i := range files {
		f, dir := &files[i], filepath.Dir(files[i].Path)
		isFirst := !older[dir]
		older[dir] = true
		file, err := f.open()
		if err != nil {
			continue
		}
		file.Close()
		f.Gap = Gap{Lost: file.lost, ends: file.began}
		if name := records.Name(file.continues); !file.continues.IsZero() && !isFirst && !there[filepath.Join(dir, name)] {
			f.Missing = name
		}
	}
}

// opened is an open file, read by one of two readers.
type opened struct {
	*os.File
	began, continues time.Time
	lost             int
	scheduler        *journal.Reader
	controllers      *controllerjournal.Reader
}

func (f *File) open() (file *opened, err error) {
	file = &opened{}
	if file.File, err = owned.Open(f.Path); err != nil {
		return nil, err
	}
	if f.Controllers {
		file.controllers, err = controllerjournal.NewReader(file)
	} else {
		file.scheduler, err = journal.NewReader(file)
	}
	switch {
	case err != nil:
		file.Close()
		return nil, err
	case f.Controllers:
		file.began, file.continues, file.lost = file.controllers.Header.Began, file.controllers.Header.Continues, file.controllers.Header.Lost
	default:
		file.began, file.continues, file.lost = file.scheduler.Header.Began, file.scheduler.Header.Continues, file.scheduler.Header.Lost
	}
	return file, nil
}

// again reads a journal of the scheduler from its beginning.
func (file *opened) again() (*journal.Reader, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return journal.NewReader(file)
}
