package metrics

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/node/agent/pressure"
	"github.com/berth-k8s/berth/internal/node/agent/volumes/sizes"
)

// filesystem measures the one that a path is on, as it is for users other than root.
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

// mounts are the container runtime's filesystems, each by a folder on it: one of images, one of
// containers' writable layers. They are the same unless the runtime is configured to separate them.
type mounts struct{ images, layers string }

// runtime measures the filesystems of images and containers; nothing if the runtime does not say
// where they are.
func (c *Collector) runtime(ctx context.Context) (*stats.RuntimeStats, error) {
	info, err := c.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the runtime for its filesystem: %w", err)
	}
	images, err := runtimeFilesystem(info.GetImageFilesystems())
	if images == nil || err != nil {
		return nil, err
	}
	c.remember(info)
	layers, err := runtimeFilesystem(info.GetContainerFilesystems())
	if err != nil {
		return nil, err
	}
	if layers == nil { // as with runtimes before CRI v1.29
		layers = new(*images)
	}
	return &stats.RuntimeStats{ImageFs: images, ContainerFs: layers}, nil
}

// runtimeFilesystem measures the first of a list; nil if there is none.
func runtimeFilesystem(list []*runtimeapi.FilesystemUsage) (*stats.FsStats, error) {
	mount := mountOf(list)
	if mount == "" {
		return nil, nil
	}
	measured, err := filesystem(mount)
	if err != nil {
		return nil, fmt.Errorf("measure the runtime's filesystem: %w", err)
	}
	// What images or layers take, not all that is used on the filesystem.
	measured.UsedBytes = number(int64(list[0].GetUsedBytes().GetValue()))
	measured.InodesUsed = number(int64(list[0].GetInodesUsed().GetValue()))
	return measured, nil
}

func mountOf(list []*runtimeapi.FilesystemUsage) string {
	if len(list) == 0 {
		return ""
	}
	return list[0].GetFsId().GetMountpoint()
}

// remember records where the runtime's filesystems are.
func (c *Collector) remember(info *runtimeapi.ImageFsInfoResponse) mounts {
	found := mounts{images: mountOf(info.GetImageFilesystems()), layers: mountOf(info.GetContainerFilesystems())}
	if found.layers == "" {
		found.layers = found.images
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mounts = found
	return found
}

// listings is how often the runtime is asked for all containers if one of them goes meanwhile:
// containerd then answers for none.
const listings = 5

// writableLayers are what containers have written into their root filesystems, by container ID.
func (c *Collector) writableLayers(ctx context.Context) (map[string]*runtimeapi.FilesystemUsage, error) {
	list, err := c.Runtime.ListContainerStats(ctx, nil)
	for again := 1; status.Code(err) == codes.NotFound && again < listings; again++ {
		list, err = c.Runtime.ListContainerStats(ctx, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the runtime for its containers' filesystems: %w", err)
	}
	layers := map[string]*runtimeapi.FilesystemUsage{}
	for _, container := range list {
		layers[container.GetAttributes().GetId()] = container.GetWritableLayer()
	}
	return layers, nil
}

// walk measures what a pod has on disk: the logs of its containers, and its volumes.
func (c *Collector) walk(ctx context.Context, pod *v1.Pod) podDisk {
	disk := podDisk{logs: map[string]size{}}
	logs := filepath.Join(c.LogDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			disk.logs[list[i].Name] = treeSize(ctx, filepath.Join(logs, list[i].Name))
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		name := pod.Spec.EphemeralContainers[i].Name
		disk.logs[name] = treeSize(ctx, filepath.Join(logs, name))
	}
	// A volume that cannot be measured, because it is just being removed, is left out with the
	// others.
	disk.volumes, _ = c.Volumes(ctx, pod)
	return disk
}

// treeSize sums up a folder. One that cannot be read counts as empty.
func treeSize(ctx context.Context, dir string) size {
	bytes, inodes, _ := sizes.Measure(ctx, dir)
	return size{bytes, inodes}
}

// addDisks adds what the pod and its containers have on disk. A pod that was not measured in time
// is left without it.
func addDisks(pod *v1.Pod, measured *stats.PodStats, sizes map[types.UID]podDisk, layers map[string]*runtimeapi.FilesystemUsage, node, layerFs *stats.FsStats) {
	disk, known := sizes[pod.UID]
	if !known {
		return
	}
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
	for i := range measured.Containers {
		container := &measured.Containers[i]
		container.Logs = used(node, disk.logs[container.Name])
		layer := layers[ids[container.Name]]
		container.Rootfs = used(layerFs, size{int64(layer.GetUsedBytes().GetValue()), int64(layer.GetInodesUsed().GetValue())})
		add(container.Logs)
		add(container.Rootfs)
	}
	for _, volume := range disk.volumes {
		if volume.Own != nil {
			measured.VolumeStats = append(measured.VolumeStats, apart(pod, volume))
			continue
		}
		part := used(node, size{volume.Used, volume.Inodes})
		measured.VolumeStats = append(measured.VolumeStats, stats.VolumeStats{FsStats: *part, Name: volume.Volume})
		if !volume.InMemory {
			add(part)
		}
	}
	measured.EphemeralStorage = used(node, size{int64(bytes), int64(inodes)})
}

// apart are the stats of a volume on a filesystem of its own.
func apart(pod *v1.Pod, volume sizes.Usage) stats.VolumeStats {
	bytes, inodes := volume.Own.Bytes, volume.Own.Inodes
	out := stats.VolumeStats{Name: volume.Volume, FsStats: stats.FsStats{
		Time:          metav1.NewTime(time.Now()),
		CapacityBytes: number(bytes.Total), UsedBytes: number(bytes.Used), AvailableBytes: number(bytes.Available),
		Inodes: number(inodes.Total), InodesUsed: number(inodes.Used), InodesFree: number(inodes.Available),
	}}
	if volume.Claim != "" {
		out.PVCRef = &stats.PVCReference{Name: volume.Claim, Namespace: pod.Namespace}
	}
	return out
}

type size struct{ bytes, inodes int64 }

// used is the usage of a part of a filesystem, with the capacity of the whole.
func used(on *stats.FsStats, part size) *stats.FsStats {
	all := stats.FsStats{Time: metav1.NewTime(time.Now())}
	if on != nil {
		all = *on
	}
	all.UsedBytes, all.InodesUsed = number(part.bytes), number(part.inodes)
	return &all
}

// Levels returns the signals of node pressure: a few small files and two system calls.
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
	at := c.runtimeMounts(ctx)
	if at.images == "" {
		return levels, nil
	}
	images, err := filesystem(at.images)
	if err != nil {
		return levels, nil // the runtime's folder has gone: it will say where the new one is
	}
	addDisk(levels, pressure.ImageFs, pressure.ImageFsInodes, images)
	levels.ImagesApart = device(at.images) != device(c.RootDir)
	levels.LayersWithNode = levels.ImagesApart && device(at.layers) != device(at.images)
	return levels, nil
}

func addDisk(levels pressure.Levels, bytes, inodes pressure.Signal, fs *stats.FsStats) {
	levels.Signals[bytes] = pressure.Level{Available: int64(*fs.AvailableBytes), Capacity: int64(*fs.CapacityBytes)}
	// Some filesystems have no fixed number of inodes; they do not run out of them.
	if *fs.Inodes > 0 {
		levels.Signals[inodes] = pressure.Level{Available: int64(*fs.InodesFree), Capacity: int64(*fs.Inodes)}
	}
}

// mountPatience is how long to wait for the runtime to name its filesystems: memory is read in the
// same call, and must not wait for a runtime that hangs.
const mountPatience = 200 * time.Millisecond

// runtimeMounts are read once: they do not move while the runtime runs.
func (c *Collector) runtimeMounts(ctx context.Context) mounts {
	c.mu.Lock()
	known := c.mounts
	c.mu.Unlock()
	if known.images != "" {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, mountPatience)
	defer cancel()
	info, err := c.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return mounts{}
	}
	return c.remember(info)
}

func device(path string) uint64 {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return 0
	}
	return uint64(stat.Dev)
}
