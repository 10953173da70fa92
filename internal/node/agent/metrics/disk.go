package metrics

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/node/agent/pressure"
)

// filesystem measures the one that a path is on, as whoever is not root sees it.
func filesystem(path string) (*stats.FsStats, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	block := int64(fs.Frsize)
	return &stats.FsStats{
		Time:           metav1.NewTime(time.Now()),
		AvailableBytes: number(int64(fs.Bavail) * block),
		CapacityBytes:  number(int64(fs.Blocks) * block),
		UsedBytes:      number(int64(fs.Blocks-fs.Bfree) * block),
		InodesFree:     number(int64(fs.Ffree)),
		Inodes:         number(int64(fs.Files)),
		InodesUsed:     number(int64(fs.Files - fs.Ffree)),
	}, nil
}

// runtime measures the filesystem of images and containers; nothing if the runtime does not say
// where that is.
func (c *Collector) runtime(ctx context.Context) (*stats.RuntimeStats, error) {
	info, err := c.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the runtime for its filesystem: %w", err)
	}
	images, err := c.imageFilesystem(info)
	if images == nil || err != nil {
		return nil, err
	}
	containers := *images
	return &stats.RuntimeStats{ImageFs: images, ContainerFs: &containers}, nil
}

func (c *Collector) imageFilesystem(info *runtimeapi.ImageFsInfoResponse) (*stats.FsStats, error) {
	list := info.GetImageFilesystems()
	if len(list) == 0 || list[0].GetFsId().GetMountpoint() == "" {
		return nil, nil
	}
	mount := list[0].GetFsId().GetMountpoint()
	images, err := filesystem(mount)
	if err != nil {
		return nil, fmt.Errorf("measure the runtime's filesystem: %w", err)
	}
	c.mu.Lock()
	c.images = mount
	c.mu.Unlock()
	// Of the filesystem, what images take.
	images.UsedBytes = number(int64(list[0].GetUsedBytes().GetValue()))
	images.InodesUsed = number(int64(list[0].GetInodesUsed().GetValue()))
	return images, nil
}

// writableLayers are what containers have written into their root filesystems, by container ID.
func (c *Collector) writableLayers(ctx context.Context) (map[string]*runtimeapi.FilesystemUsage, error) {
	list, err := c.Runtime.ListContainerStats(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the runtime for its containers' filesystems: %w", err)
	}
	layers := map[string]*runtimeapi.FilesystemUsage{}
	for _, container := range list {
		layers[container.GetAttributes().GetId()] = container.GetWritableLayer()
	}
	return layers, nil
}

// disks adds what the pod and its containers have on disk. A part that cannot be measured, because
// it goes away just now, is left out.
func (c *Collector) disks(pod *v1.Pod, measured *stats.PodStats, layers map[string]*runtimeapi.FilesystemUsage, node, images *stats.FsStats) {
	var bytes, inodes uint64
	add := func(part *stats.FsStats) {
		bytes += *part.UsedBytes
		inodes += *part.InodesUsed
	}
	ids := map[string]string{}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			ids[list[i].Name] = containerID(list[i].ContainerID)
		}
	}
	logs := filepath.Join(c.LogDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	for i := range measured.Containers {
		container := &measured.Containers[i]
		container.Logs = used(node, treeSize(filepath.Join(logs, container.Name)))
		layer := layers[ids[container.Name]]
		container.Rootfs = used(images, size{int64(layer.GetUsedBytes().GetValue()), int64(layer.GetInodesUsed().GetValue())})
		add(container.Logs)
		add(container.Rootfs)
	}
	list, err := c.Volumes(pod)
	if err == nil {
		for _, volume := range list {
			part := used(node, size{volume.Used, volume.Inodes})
			measured.VolumeStats = append(measured.VolumeStats, stats.VolumeStats{FsStats: *part, Name: volume.Volume})
			if !volume.InMemory {
				add(part)
			}
		}
	}
	measured.EphemeralStorage = used(node, size{int64(bytes), int64(inodes)})
}

type size struct{ bytes, inodes int64 }

// used is a part of a filesystem.
func used(on *stats.FsStats, part size) *stats.FsStats {
	all := stats.FsStats{Time: metav1.NewTime(time.Now())}
	if on != nil {
		all = *on
	}
	all.UsedBytes, all.InodesUsed = number(part.bytes), number(part.inodes)
	return &all
}

// treeSize sums up a folder of files that nobody else links to.
func treeSize(dir string) (sum size) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) == nil {
			sum.bytes += stat.Blocks * 512 // of st_blocks, whatever the filesystem's are
			sum.inodes++
		}
		return nil
	})
	return sum
}

// Levels are the signals of node pressure: a few small files and two questions to the kernel.
func (c *Collector) Levels(ctx context.Context) (pressure.Levels, error) {
	memory, tasks, err := c.Tree.Machine()
	if err != nil {
		return pressure.Levels{}, err
	}
	levels := pressure.Levels{Signals: map[pressure.Signal]pressure.Level{
		pressure.Memory: {Available: memory.Available(), Capacity: memory.Capacity},
		pressure.PIDs:   {Available: tasks.Available(), Capacity: tasks.Capacity},
	}}
	if pods, limit, err := c.Tree.AllPods(); err == nil && limit > 0 {
		levels.Signals[pressure.AllocatableMemory] = pressure.Level{Available: max(limit-pods.WorkingSet, 0), Capacity: limit}
	}
	node, err := filesystem(c.RootDir)
	if err != nil {
		return levels, err
	}
	addDisk(levels, pressure.NodeFs, pressure.NodeFsInodes, node)
	mount := c.imageMount(ctx)
	if mount == "" {
		return levels, nil
	}
	images, err := filesystem(mount)
	if err != nil {
		return levels, nil // the runtime's folder has gone: it will say where the new one is
	}
	addDisk(levels, pressure.ImageFs, pressure.ImageFsInodes, images)
	levels.ImagesApart = device(mount) != device(c.RootDir)
	return levels, nil
}

func addDisk(levels pressure.Levels, bytes, inodes pressure.Signal, fs *stats.FsStats) {
	levels.Signals[bytes] = pressure.Level{Available: int64(*fs.AvailableBytes), Capacity: int64(*fs.CapacityBytes)}
	// Some filesystems have no fixed number of inodes; they do not run out of them.
	if *fs.Inodes > 0 {
		levels.Signals[inodes] = pressure.Level{Available: int64(*fs.InodesFree), Capacity: int64(*fs.Inodes)}
	}
}

// imageMount is asked for once: it does not move while the runtime is there.
func (c *Collector) imageMount(ctx context.Context) string {
	c.mu.Lock()
	mount := c.images
	c.mu.Unlock()
	if mount != "" {
		return mount
	}
	info, err := c.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return ""
	}
	_, _ = c.imageFilesystem(info)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.images
}

func device(path string) uint64 {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return 0
	}
	return uint64(stat.Dev)
}
