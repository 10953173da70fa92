// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFullDiskEndsIt verifies, for several amounts of free space, that a start either fails with
// the reason or serves until the disk is full, and that freeing space restores everything.
func TestFullDiskEndsIt(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=192m"); err != nil {
		t.Skipf("no disk that could be filled: mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", disk, err)
		}
	})
	dir := filepath.Join(disk, "data")
	first := start(t, "--data-dir", dir)
	first.waitReady(t)
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	if _, err := client(t, dir).CoreV1().ConfigMaps("default").Create(t.Context(), kept, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first.terminate(t, syscall.SIGTERM)

	filling := filepath.Join(disk, "filling")
	for _, room := range []int64{0, 64 << 10, 1 << 20, 16 << 20} {
		if err := fill(filling, room); err != nil {
			t.Fatal(err)
		}
		p := start(t, "--data-dir", dir)
		select {
		case <-p.ready:
			writeUntilFull(t, p, dir)
			expectRefusal(t, p, 1, "no space left on device")
		case <-p.ended:
			expectRefusal(t, p, 1, "no space left on device")
		case <-time.After(patience):
			t.Errorf("with %d KiB of room it neither serves nor ends", room>>10)
			p.kill()
		}
	}
	if err := os.Remove(filling); err != nil {
		t.Fatal(err)
	}
	last := start(t, "--data-dir", dir)
	last.waitReady(t)
	if _, err := client(t, dir).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// writeUntilFull creates objects until the process ends.
func writeUntilFull(t *testing.T, p *process, dir string) {
	t.Helper()
	maps := client(t, dir).CoreV1().ConfigMaps("default")
	end := time.After(patience)
	for i := 0; ; i++ {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "more-"}, Data: map[string]string{"content": strings.Repeat("x", 500<<10)}}
		_, _ = maps.Create(t.Context(), object, metav1.CreateOptions{})
		select {
		case <-p.ended:
			return
		case <-end:
			t.Errorf("it serves on after %d objects of 500 KiB", i)
			p.kill()
			return
		default:
		}
	}
}

// fill creates a file so large that the disk has room bytes left.
func fill(path string, room int64) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &disk); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	size := int64(disk.Bavail)*disk.Bsize - room
	if size <= 0 {
		return fmt.Errorf("there is less room than %d", room)
	}
	return syscall.Fallocate(int(file.Fd()), 0, 0, size)
}
