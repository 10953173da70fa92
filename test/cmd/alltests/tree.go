package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// sum is of all files of a tree, what was built included, and what git keeps for itself left out.
func sum(root string) (string, error) {
	all := sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		one := sha256.New()
		if _, err := io.Copy(one, file); err != nil {
			return err
		}
		io.WriteString(all, relative(root, path)+"\x00")
		all.Write(one.Sum(nil))
		return nil
	})
	return hex.EncodeToString(all.Sum(nil)), err
}
