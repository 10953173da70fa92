// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeLayout writes an OCI layout as a tar file. The same content gives the same bytes.
func writeLayout(file string, created time.Time, fill func(layout.Path) error) error {
	work, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	folder := filepath.Join(work, "layout")
	path, err := layout.Write(folder, empty.Index)
	if err == nil {
		err = fill(path)
	}
	if err != nil {
		return fmt.Errorf("write layout: %w", err)
	}

	archive := filepath.Join(work, "tar")
	if err := writeTar(folder, archive, created); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(archive, file)
}

// writeTar packs a folder into a tar file, without information about the machine.
func writeTar(folder, file string, created time.Time) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()

	w := tar.NewWriter(out)
	if err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(name), ModTime: created.UTC(), Mode: 0o644, Format: tar.FormatPAX}
		if entry.IsDir() {
			header.Typeflag, header.Mode, header.Name = tar.TypeDir, 0o755, header.Name+"/"
			return w.WriteHeader(header)
		}
		return copyInto(w, header, path)
	}); err != nil {
		return err
	}

	if err := w.Close(); err != nil {
		return err
	}
	return out.Close()
}

func copyInto(w *tar.Writer, header *tar.Header, path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	header.Size = info.Size()
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
