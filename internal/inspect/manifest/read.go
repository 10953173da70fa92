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

// Options say how to read. The zero value is strict about objects, as an API server is, and
// keeps pods whose nodes are missing.
type Options struct {
	// Recursive reads the folders in folders, too.
	Recursive bool
	// Lenient accepts what the API server would refuse, and references to missing objects:
	// for input that a cluster has printed, where today's rules need not have applied when an
	// object was created. The set is taken for a whole cluster (Set.Whole), unless the caller
	// knows better. Two objects of one name are refused all the same.
	Lenient bool
	// Strict refuses pods that are bound to a node that the input does not have. Without it
	// they are kept, and counted in Set.Elsewhere.
	Strict bool
	// Over is what the input is applied to, or nil: objects may refer to what it has, too.
	Over *Set
	// Stdin is how messages refer to standard input; by default <stdin>.
	Stdin string
	// Kustomize returns the manifests of a folder as kubectl kustomize does. It is called for each
	// kustomization that Read is given, see [Kustomization]. If it is nil, these are errors.
	Kustomize func(folder string) ([]byte, error)
	// Workers is how many objects are read at a time; 0 is one per CPU.
	Workers int
}

// maxErrors is how many errors are reported one by one. The rest are only counted: one wrong
// template can make thousands.
const maxErrors = 20

// kustomization is the prefix of a kustomization's path. Messages show it, because their line
// numbers are those of this command's output.
const kustomization = "kubectl kustomize "

// Kustomization returns the path by which Read reads the output of a folder's kustomization.
func Kustomization(folder string) string { return kustomization + folder }

// Read reads manifests: files, folders (their .yaml, .yml and .json files), kustomizations,
// and "-" for stdin. The error is Errors if the input is at fault, and then has all faults in
// the order of the input; no set is returned. Objects that are lists are taken apart. The set
// is not expanded.
func Read(paths []string, stdin io.Reader, options Options) (*Set, error) {
	files, err := expandPaths(paths, options.Recursive)
	if err != nil {
		return nil, err
	}

	r := &reader{options: options, set: &Set{
		Whole: options.Lenient, Ignored: map[string]int{}, places: map[string][]place{}, files: files,
		stdin: cmp.Or(options.Stdin, "<stdin>"),
	}}

	if err := r.readFiles(files, stdin); err != nil {
		return nil, err
	}
	r.set.Warnings = r.warnings.listLines()
	// References are checked only if all objects could be read: an object with a fault would
	// be reported as missing as well.
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

	// In strict reading, checkObjects has refused workloads that are too large.
	if options.Lenient {
		r.set.limitWorkloads()
	}
	// Last, because the default storage class may stand behind the claims.
	class := admission.DefaultStorageClass(r.set.StorageClasses)
	for _, claim := range r.set.PersistentVolumeClaims {
		admission.Claim(claim, class)
	}
	return r.set, nil
}

// expandPaths lists the files that paths stand for. Files of a folder are in alphabetical
// order. A folder without any manifest is an error: the path is probably wrong.
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
			return nil, errors.New("the name of a file is empty")
		// kubectl -f reads URLs; this does not, so as to work offline and to open no
		// connections.
		case err != nil && strings.Contains(path, "://"):
			return nil, fmt.Errorf("%s: URLs are not read: download it first, or pipe it into -f -", path)
		case err != nil:
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		// deeper is a hint for the error if the folder has only subfolders that were not
		// read.
		before, deeper := len(files), ""
		err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && file != path && !recursive:
				deeper = "; -R reads its subfolders, too"
				return fs.SkipDir
			case !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(file))):
				files = append(files, file)
				return onlyRegular(file)
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

// onlyRegular refuses what lies in a folder and might be read for ever: a device or a FIFO,
// or a link to one. Paths that were named themselves may be FIFOs, as from <(...) of a shell.
func onlyRegular(file string) error {
	f, err := owned.Open(file)
	if err != nil {
		return err
	}
	return f.Close()
}

// reader runs three stages: one goroutine cuts files into batches of chunks, workers read the
// batches, and the caller's goroutine collects them in order. Only the last of these changes
// the reader's fields.
//
//	cutFiles --jobs----> worker, worker, ...     in any order
//	         --ordered-> collectBatch            waits for each batch in the order of the input
type reader struct {
	options  Options
	set      *Set
	errs     Errors
	more     int // errors beyond maxErrors
	warnings warnings
}

// addError adds an error, or counts it beyond maxErrors.
func (r *reader) addError(e *Error) {
	if len(r.errs) == maxErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, e)
}

// batch is some chunks of one file, and what was found in them. The goroutine that cuts files
// fills chunks, one worker empties them and fills found. found is complete once ready is
// closed.
type batch struct {
	file   int32
	order  int32 // of the first chunk
	chunks []chunk
	found  []found
	ready  chan struct{}
}

// Batches are large enough that handing them over costs nothing, and few enough in flight that
// memory stays bounded.
const (
	batchChunks = 256
	batchBytes  = 1 << 20
	inFlight    = 8
)

// readFiles reads all files into the set. Faults of the input are in r.errs; the error is a
// file that could not be read.
func (r *reader) readFiles(files []string, stdin io.Reader) error {
	workers := cmp.Or(r.options.Workers, runtime.GOMAXPROCS(0))
	jobs, ordered := make(chan *batch, inFlight), make(chan *batch, inFlight)
	var failed error
	var running sync.WaitGroup
	running.Go(func() {
		defer close(jobs)
		defer close(ordered)
		failed = r.cutFiles(files, stdin, func(b *batch) {
			// Both channels are bounded, so cutting waits when workers or the collector are
			// behind, and memory stays bounded. A batch is in jobs first: the collector must
			// never wait for one that no worker can take.
			jobs <- b
			ordered <- b
		})
	})
	for range workers {
		running.Go(func() {
			// One parser per worker: its tree and its table of words are reused for all
			// objects.
			p := &parser{decoder: newDecoder(), lenient: r.options.Lenient}
			for b := range jobs {
				for i, c := range b.chunks {
					b.found = append(b.found, p.parseChunk(c, b.order+int32(i))...)
				}
				b.chunks = nil
				close(b.ready)
			}
		})
	}
	for b := range ordered {
		<-b.ready
		r.collectBatch(b)
	}
	running.Wait()
	if len(r.errs) > 0 {
		return nil // the errors in the input come first
	}
	return failed
}

// cutFiles emits the chunks of all files in batches, in order. A batch never spans two files.
// What was cut before a file fails is emitted, so that faults in it are reported, too.
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

// newBatch returns an empty batch of a file, whose first chunk will be the order-th of the
// input.
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

// openFile opens a file, standard input, or the output of a kustomization. Standard input is
// not closed.
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

// collectBatch adds what was found in a batch to the set, and its faults to the errors. An
// object with a fault is left out.
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
			r.set.Ignored[f.ignored]++
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

// fileName returns how messages refer to a file.
func (s *Set) fileName(file int32) string {
	if s.files[file] == "-" {
		return s.stdin
	}
	return s.files[file]
}
