package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// subPath bind-mounts what is at a path in a volume to a place that no container can change, and
// returns that place. Anyone who can write to the volume can create links there, and replace
// folders by links meanwhile, so every step starts from an open folder, and none follows a link. A
// path that leads out of the volume is rejected, and missing folders are created with the mode of
// the volume.
func subPath(volume, path, target string) error {
	base, err := filepath.EvalSymlinks(volume) // the volume itself may be one: hostPath
	if err != nil {
		return err
	}
	if err := makeBelow(base, path); err != nil {
		return fmt.Errorf("making it: %w", err)
	}
	resolved, err := filepath.EvalSymlinks(filepath.Join(base, path))
	if err != nil {
		return err
	}
	source, err := openBelow(base, resolved)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	return bind(source, target)
}

// openBelow opens what is at a path in the base, without following links. It opens it by path only
// (O_PATH), not for reading, so that pipes and devices do no harm.
func openBelow(base, path string) (int, error) {
	steps, err := steps(base, path)
	if err != nil {
		return -1, err
	}
	const place = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := unix.Open(base, place, 0)
	if err != nil {
		return -1, fmt.Errorf("opening %s: %w", base, err)
	}
	for _, step := range steps {
		next, err := unix.Openat(at, step, place, 0)
		unix.Close(at)
		if err != nil {
			return -1, fmt.Errorf("opening %q in %s: %w", step, path, err)
		}
		at = next
		var stat unix.Stat_t
		if err = unix.Fstat(at, &stat); err == nil && stat.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = errors.New("it has become a link")
		}
		if err != nil {
			unix.Close(at)
			return -1, fmt.Errorf("opening %q in %s: %w", step, path, err)
		}
	}
	return at, nil
}

// steps are the names on the way from the base to a path in it.
func steps(base, path string) ([]string, error) {
	way, err := filepath.Rel(base, path)
	switch {
	case err != nil:
		return nil, err
	case way == ".":
		return nil, nil
	case !filepath.IsLocal(way):
		return nil, fmt.Errorf("%s is not in %s", path, base)
	}
	return strings.Split(way, "/"), nil
}

// makeBelow makes the folders that are missing on the path, with the mode of the base.
func makeBelow(base, path string) error {
	info, err := os.Stat(base)
	if err != nil {
		return err
	}
	there, missing := base, strings.Split(filepath.Clean(path), "/")
	for len(missing) > 0 {
		next, err := filepath.EvalSymlinks(filepath.Join(there, missing[0]))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		there, missing = next, missing[1:]
	}
	at, err := openBelow(base, there)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	for _, name := range missing {
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		unix.Close(at)
		at = next
		if err := unix.Fchmod(at, kernelMode(info.Mode())); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func kernelMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	if mode&fs.ModeSetuid != 0 {
		bits |= unix.S_ISUID
	}
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return bits
}

// bind mounts what was opened at the target. It does nothing if that is mounted there already, as
// after a restart of the agent.
func bind(source int, target string) error {
	var wanted, found unix.Stat_t
	if err := unix.Fstat(source, &wanted); err != nil {
		return err
	}
	if err := unix.Lstat(target, &found); err == nil && found.Dev == wanted.Dev && found.Ino == wanted.Ino {
		return nil
	}
	if err := unbind(target); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if wanted.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.Mkdir(target, 0o750); err != nil {
			return err
		}
	} else if err := os.WriteFile(target, nil, 0o640); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(source), target, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("binding: %w", err), os.Remove(target))
	}
	return nil
}

// unbind unmounts everything at the target, and removes the target.
func unbind(target string) error {
	for {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil: // there may be another one below
		case errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EINVAL): // nothing is mounted there
			return os.Remove(target)
		default:
			return fmt.Errorf("unmounting %s: %w", target, err)
		}
	}
}

// validSubPath rejects a subPath that leads out of its volume as written.
func validSubPath(path string) error {
	if filepath.IsAbs(path) {
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", path)
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", path)
	}
	return nil
}
