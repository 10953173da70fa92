package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/owned"
)

// At reads the objects as they were at a time. It is an error if the recording does not cover that
// time.
func At(dir string, at time.Time) (*manifest.Set, error) {
	index, err := ReadIndex(dir)
	if err != nil {
		return nil, err
	}

	var session *Session
	for i := range index.Sessions {
		if s := &index.Sessions[i]; !s.Began.After(at) {
			session = s
		}
	}

	if session == nil || session.Until.Add(time.Second).Before(at) {
		return nil, fmt.Errorf("%s: nothing was recorded at %s; there is %s", dir, at.UTC().Format(time.RFC3339), listSpans(index))
	}
	folder, err := session.openFolder(dir)
	if err != nil {
		return nil, err
	}

	objects := map[identity]json.RawMessage{}
	var order []identity
	set := func(text []byte) error {
		key, err := identityOf(text)
		if err != nil {
			return err
		}
		if objects[key] == nil {
			order = append(order, key)
		}
		objects[key] = slices.Clone(text)
		return nil
	}

	for _, k := range snapshot.Kinds() {
		if err := readList(filepath.Join(folder, k.Resource+".json"), set); err != nil {
			return nil, err
		}
	}

	err = replaySession(folder, at, func(c *Change) error {
		if c.Type == "Set" {
			return set(c.Object)
		}
		key, err := identityOf(c.Object)
		if err == nil {
			delete(objects, key)
		}
		return err
	})

	if err != nil {
		return nil, err
	}
	list := make([]json.RawMessage, 0, len(objects))
	for _, key := range order {
		if o := objects[key]; o != nil {
			list = append(list, o)
			delete(objects, key)
		}
	}

	return assembleSet(dir, list)
}

// assembleSet reads the objects as strictly as those of any file: a recording may have been made by
// someone else.
func assembleSet(dir string, list []json.RawMessage) (*manifest.Set, error) {
	var text bytes.Buffer
	text.WriteString(`{"apiVersion":"v1","kind":"List","items":[`)
	for i, object := range list {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteByte('\n')
		text.Write(object)
	}
	text.WriteString("\n]}\n")
	return manifest.Read([]string{"-"}, &text, manifest.Options{Lenient: true, Stdin: dir})
}

// identity distinguishes objects.
type identity struct{ kind, namespace, name string }

func identityOf(text []byte) (identity, error) {
	var object struct {
		Kind     string
		Metadata struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return identity{}, err
	}
	return identity{object.Kind, object.Metadata.Namespace, object.Metadata.Name}, nil
}

// listSpans names the times that were recorded without interruption.
func listSpans(index *Index) string {
	var list []string
	began := metav1.MicroTime{}
	for i, s := range index.Sessions {
		if i == 0 || !s.Began.Equal(&index.Sessions[i-1].Until) {
			began = s.Began
		}
		if i+1 == len(index.Sessions) || !s.Until.Equal(&index.Sessions[i+1].Began) {
			list = append(list, began.UTC().Format(time.RFC3339)+" to "+s.Until.UTC().Format(time.RFC3339))
		}
	}
	return strings.Join(list, ", ")
}

func readList(path string, take func([]byte) error) error {
	text, err := owned.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	for _, item := range list.Items {
		if err := take(item); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// replaySession calls take for the session's changes up to a time. It fails if some of them are
// missing.
func replaySession(folder string, until time.Time, take func(*Change) error) error {
	files, err := filepath.Glob(filepath.Join(folder, changesPrefix+"*"+changesSuffix))
	if err != nil {
		return err
	}

	for i, path := range files {
		if !strings.HasSuffix(path, fmt.Sprintf("%06d%s", i+1, changesSuffix)) {
			return fmt.Errorf("%s: the changes before it are missing", path)
		}
		f, err := owned.Open(path)
		if err != nil {
			return err
		}
		number := 0
		err = eachLine(bufio.NewReader(f), func(line []byte) error {
			number++
			var c Change
			if err := json.Unmarshal(line, &c); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			if c.At.After(until) {
				return io.EOF
			}
			return take(&c)
		})
		f.Close()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}

	return nil
}

// eachLine calls take for each complete line: the last one may have been cut off by a crash.
func eachLine(r *bufio.Reader, take func([]byte) error) error {
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := take(line); err != nil {
			return err
		}
	}
}
