// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/owned"
)

// Options configures reading. The zero value is strict about objects, like an API server, and keeps
// pods on missing nodes.
type Options struct {
	// Recursive reads nested folders as well.
	Recursive bool
	// Lenient accepts objects that the API server would reject, and references to missing objects.
	// It is for objects read from a cluster, because other rules may have applied when they were
	// created. The set is considered a whole cluster (Set.Whole), unless the caller corrects that.
	// Duplicate names are still rejected.
	Lenient bool
	// Strict rejects pods on nodes missing from the input. Without it they are kept, and counted in
	// Set.Elsewhere.
	Strict bool
	// Namespace is the namespace of objects without one; by default, "default".
	Namespace string
	// Over, if not nil, is the set to which the input is applied: objects may refer to its objects
	// as well.
	Over *Set
	// Stdin is the name of standard input in messages; by default <stdin>.
	Stdin string
	// Kustomize builds a folder's manifests like kubectl kustomize. Read calls it for each
	// kustomization; see [Kustomization]. If it is nil, a kustomization is an error.
	Kustomize func(folder string) ([]byte, error)
	// Workers is the number of concurrent workers; 0 means one per CPU.
	Workers int
}

// maxErrors limits the errors reported individually. The rest are only counted: one wrong template
// can cause thousands.
const maxErrors = 20

// kustomization is the prefix of a kustomization's path. Messages show it, because their line
// numbers refer to the output of this command.
const kustomization = "kubectl kustomize "

// Kustomization returns the path that makes Read build a folder's kustomization.
func Kustomization(folder string) string { return kustomization + folder }

// Read reads manifests: files, folders (their .yaml, .yml and .json files), kustomizations, and "-"
// for stdin. If the input is faulty, it returns no set, but an error of type Errors with the faults
// in the order of the input. Lists are split into their items. The set is not expanded.
func Read(paths []string, stdin io.Reader, options Options) (*Set, error) {
	files, err := expandPaths(paths, options.Recursive)
	if err != nil {
		return nil, err
	}

	r := &reader{options: options, set: &Set{
		Whole: options.Lenient, Ignored: map[string]int{}, places: map[string][]place{}, files: files,
		stdin: cmp.Or(options.Stdin, "<stdin>"),
	}}

	if err := r.readFiles(files, stdin); err != nil && len(r.errs) == 0 { // errors in the input take precedence
		return nil, err
	}
	r.set.Warnings = r.warnings.listLines()
	// Check references only if all objects could be read, because an object with a fault would also
	// be reported as missing.
	if len(r.errs) == 0 {
		for _, e := range r.set.checkObjects(options) {
			r.addError(e)
		}
	}

	if r.more > 0 {
		r.errs = append(r.errs, &Error{Text: fmt.Sprintf("and %d more errors", r.more)})
	}
	if len(r.errs) > 0 {
		return nil, r.errs
	}

	// Without Lenient, checkObjects has rejected workloads that are too large.
	if options.Lenient {
		r.set.limitWorkloads()
	}
	// Do this last, because the default storage class may follow the claims in the input.
	class := admission.DefaultStorageClass(r.set.StorageClasses)
	for _, claim := range r.set.PersistentVolumeClaims {
		admission.Claim(claim, class)
	}
	return r.set, nil
}

// expandPaths lists the files at the paths. Files of a folder are in alphabetical order. A folder
// without any manifest is an error, because the path is probably wrong.
func expandPaths(paths []string, recursive bool) ([]string, error) {
	var files []string
	for _, path := range paths {
		if path == "-" || strings.HasPrefix(path, kustomization) {
			files = append(files, path)
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil && path == "":
			return nil, errors.New("a file name is empty")
		// Unlike kubectl -f, do not read URLs, in order to work offline and open no connections.
		case err != nil && strings.Contains(path, "://"):
			return nil, fmt.Errorf("%s: URLs are not read: download it first, or pipe it into -f -", path)
		case err != nil:
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		// deeper is a hint for the error if the folder has only unread subfolders.
		before, deeper := len(files), ""
		err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.Name() == "Chart.yaml":
				return fmt.Errorf("%s: a Helm chart: render it first, with `helm template`", filepath.Dir(file))
			case entry.IsDir() && file != path && !recursive:
				deeper = "; -R reads its subfolders, too"
				return fs.SkipDir
			case !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(file))):
				files = append(files, file)
				// Opening a device or a FIFO, or a link to one, returns an error, because
				// reading it might never end. Only paths named explicitly may be FIFOs, as
				// from a shell's <(...).
				f, err := owned.Open(file)
				if err != nil {
					return err
				}
				return f.Close()
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(files) == before {
			return nil, fmt.Errorf("%s: no .yaml, .yml or .json file in this folder%s", path, deeper)
		}
	}

	return files, nil
}

// reader runs three stages: one goroutine cuts files into batches of chunks, workers read the
// batches, and the caller's goroutine collects them in order. Only the caller's goroutine changes
// the reader's fields.
//
//	cutFiles --jobs----> worker, worker, ...     in any order
//	         --ordered-> collectBatch            waits for each batch in the order of the input
type reader struct {
	options  Options
	set      *Set
	errs     Errors
	more     int // number of errors beyond maxErrors
	warnings warnings
}

// isTemplate is the text of the fault reported for an unrendered template.
const isTemplate = "an unrendered Helm template: render it first, with `helm template`"

// nameTemplate replaces the faults of a chunk that seems to be an unrendered template: it has a
// fault on a line with an action, or a syntax error and any action. Other chunks keep their faults,
// because annotations may contain templates of other programs.
func nameTemplate(c chunk, all []found) []found {
	if !slices.ContainsFunc(all, func(f found) bool { return len(f.problems) > 0 }) {
		return all
	}
	var actions []int32 // in ascending order
	for i, line := range strings.Split(c.text, "\n") {
		if strings.Contains(line, "{{") {
			actions = append(actions, c.line+int32(i))
		}
	}
	for _, f := range all {
		for _, p := range f.problems {
			at, is := slices.BinarySearch(actions, p.line)
			if p.path == "" {
				at, is = 0, len(actions) > 0
			}
			if is {
				return []found{{problems: []problem{{line: actions[at], text: isTemplate}}}}
			}
		}
	}
	return all
}

// addError adds an error, or counts it beyond maxErrors. It drops further errors of a template.
func (r *reader) addError(e *Error) {
	if slices.ContainsFunc(r.errs, func(other *Error) bool { return other.Text == isTemplate && other.File == e.File }) {
		return
	}
	if len(r.errs) == maxErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, e)
}

// batch holds some chunks of one file, and their results. The goroutine that cuts files fills
// chunks. One worker consumes them, fills found, and closes ready when found is complete.
type batch struct {
	file   int32
	order  int32 // order of the first chunk
	chunks []chunk
	found  []found
	ready  chan struct{}
}

// Batches are large enough to make handing them over cheap, and few enough in flight to bound
// memory.
const (
	batchChunks = 256
	batchBytes  = 1 << 20
	inFlight    = 8
)

// readFiles reads all files into the set. It records faults of the input in r.errs; the returned
// error is about an unreadable file.
func (r *reader) readFiles(files []string, stdin io.Reader) error {
	workers := cmp.Or(r.options.Workers, runtime.GOMAXPROCS(0))
	if workers == 1 { // small manifests, in the calling goroutine
		p := r.getParser()
		defer parsers.Put(p)
		return r.cutFiles(files, stdin, func(b *batch) {
			p.parseBatch(b)
			r.collectBatch(b)
		})
	}
	jobs, ordered := make(chan *batch, inFlight), make(chan *batch, inFlight)
	var failed error
	var running sync.WaitGroup
	running.Go(func() {
		defer close(jobs)
		defer close(ordered)
		failed = r.cutFiles(files, stdin, func(b *batch) {
			// Both channels are bounded, so cutting waits while workers or the collector are
			// behind, and memory stays bounded. Send to jobs first: the collector must never wait
			// for a batch that no worker can receive.
			jobs <- b
			ordered <- b
		})
	})
	for range workers {
		running.Go(func() {
			p := r.getParser()
			defer parsers.Put(p)
			for b := range jobs {
				p.parseBatch(b)
				close(b.ready)
			}
		})
	}
	for b := range ordered {
		<-b.ready
		r.collectBatch(b)
	}
	running.Wait()
	return failed
}

// parsers holds parsers. Each reuses its tree and its table of words for all objects.
var parsers = sync.Pool{New: func() any { return &parser{decoder: newDecoder()} }}

func (r *reader) getParser() *parser {
	p := parsers.Get().(*parser)
	p.lenient, p.namespace = r.options.Lenient, r.options.Namespace
	return p
}

func (p *parser) parseBatch(b *batch) {
	for i, c := range b.chunks {
		b.found = append(b.found, nameTemplate(c, p.parseChunk(c, b.order+int32(i)))...)
	}
	b.chunks = nil
}

// cutFiles emits the chunks of all files in batches, in order. A batch never spans two files.
// Chunks before a read error are emitted, so that their faults are reported as well.
func (r *reader) cutFiles(files []string, stdin io.Reader, emit func(*batch)) error {
	order := int32(0)
	for i, file := range files {
		b, size := r.newBatch(i, order), 0
		send := func() {
			if len(b.chunks) > 0 {
				emit(b)
			}
			b, size = r.newBatch(i, order), 0
		}
		err := r.splitFile(file, stdin, func(c chunk) error {
			b.chunks = append(b.chunks, c)
			size += len(c.text)
			if order++; len(b.chunks) == batchChunks || size > batchBytes {
				send()
			}
			return nil
		})
		send()
		if err != nil {
			return err
		}
	}

	return nil
}

// newBatch returns an empty batch of a file. Its first chunk will be the order-th of the input.
func (r *reader) newBatch(file int, order int32) *batch {
	return &batch{file: int32(file), order: order, ready: make(chan struct{})}
}

// splitFile cuts one file into chunks.
func (r *reader) splitFile(file string, stdin io.Reader, emit func(chunk) error) error {
	in, err := r.openFile(file, stdin)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := splitStream(in, emit); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// openFile opens a file, standard input, or the output of a kustomization. Standard input is not
// closed.
func (r *reader) openFile(file string, stdin io.Reader) (io.ReadCloser, error) {
	folder, made := strings.CutPrefix(file, kustomization)
	switch {
	case made && r.options.Kustomize == nil:
		return nil, fmt.Errorf("%s: no kustomization can be read here", folder)
	case made:
		text, err := r.options.Kustomize(folder)
		return io.NopCloser(bytes.NewReader(text)), err
	case file != "-":
		return os.Open(file)
	case stdin == nil:
		return nil, errors.New("-: there is no standard input to read")
	}
	return io.NopCloser(stdin), nil
}

// collectBatch adds the results of a batch to the set, and its faults to the errors. It drops
// objects with faults.
func (r *reader) collectBatch(b *batch) {
	file := r.set.fileName(b.file)
	for i := range b.found {
		f := &b.found[i]
		for _, p := range f.problems {
			r.addError(&Error{File: file, Line: int(p.line), Object: f.name, Field: p.path, Text: p.text})
		}

		switch {
		case len(f.problems) > 0:
		case f.kind == nil:
			if r.set.Ignored[f.ignored]++; f.text != nil {
				r.set.ForPlans = append(r.set.ForPlans, Document{f.ignored, file, int(f.place.line), f.text})
			}
		default:
			f.place.file = b.file
			f.kind.add(r.set, f.object)
			r.set.places[f.kind.name] = append(r.set.places[f.kind.name], f.place)
			for _, u := range f.unknown {
				r.warnings.addProblem(file, f.kind.name, u)
			}
		}
	}
}

// fileName returns the name of a file in messages.
func (s *Set) fileName(file int32) string {
	if s.files[file] == "-" {
		return s.stdin
	}
	return s.files[file]
}
