package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// checkHostPath creates the path if its type asks for that, and rejects one of another type.
func checkHostPath(source *v1.HostPathVolumeSource) error {
	path := source.Path
	if slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("invalid HostPath `%s`: must not contain '..'", path)
	}
	if source.Type == nil || *source.Type == v1.HostPathUnset {
		return nil
	}
	_, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch *source.Type {
	case v1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(path, 0o755)
		}
		return expect(path, fs.FileMode.IsDir, "a directory")
	case v1.HostPathDirectory:
		return expect(path, fs.FileMode.IsDir, "a directory")
	case v1.HostPathFileOrCreate:
		if missing {
			return makeFile(path)
		}
		return expect(path, fs.FileMode.IsRegular, "a file")
	case v1.HostPathFile:
		return expect(path, fs.FileMode.IsRegular, "a file")
	case v1.HostPathSocket:
		return expect(path, func(mode fs.FileMode) bool { return mode.Type() == fs.ModeSocket }, "a socket file")
	case v1.HostPathCharDev:
		return expect(path, func(mode fs.FileMode) bool { return mode.Type() == fs.ModeDevice|fs.ModeCharDevice }, "a character device")
	case v1.HostPathBlockDev:
		return expect(path, func(mode fs.FileMode) bool { return mode.Type() == fs.ModeDevice }, "a block device")
	}
	return fmt.Errorf("%s is an invalid volume type", *source.Type)
}

func expect(path string, holds func(fs.FileMode) bool, what string) error {
	info, err := os.Stat(path)
	if err != nil || !holds(info.Mode()) {
		return fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
	}
	return nil
}

func makeFile(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}
