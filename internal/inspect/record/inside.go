// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"io/fs"
	"os"
)

// A recording may be of any origin, and contain links that lead elsewhere. Everything read, written
// or removed in its folder is therefore named by a path within the folder, and paths that lead out
// of it are errors.

// inside calls do with the root of a recording's folder.
func inside(dir string, do func(root *os.Root) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return do(root)
}

// openInside opens a file of a recording for writing.
func openInside(dir, name string, flags int) (f *os.File, err error) {
	err = inside(dir, func(root *os.Root) error {
		f, err = root.OpenFile(name, flags, 0o600)
		return err
	})
	return f, err
}

// removeInside removes a file or folder of a recording recursively.
func removeInside(dir, name string) error {
	return inside(dir, func(root *os.Root) error { return root.RemoveAll(name) })
}

// listInside lists a folder of a recording; nil if it does not exist.
func listInside(dir, name string) (entries []os.DirEntry, err error) {
	err = inside(dir, func(root *os.Root) error {
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		entries, err = f.ReadDir(-1)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
