package pressure

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type fakeRuntime struct {
	containers []*runtimeapi.Container
	images     []*runtimeapi.Image
	removed    []string
}

func (f *fakeRuntime) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Info: map[string]string{"config": `{"sandboxImage": "pause:1"}`}}, nil
}
func (f *fakeRuntime) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return f.containers, nil
}
func (f *fakeRuntime) RemoveContainer(_ context.Context, id string) error {
	f.removed = append(f.removed, id)
	return nil
}
func (f *fakeRuntime) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return f.images, nil
}
func (f *fakeRuntime) RemoveImage(_ context.Context, image *runtimeapi.ImageSpec) error {
	f.removed = append(f.removed, image.Image)
	return nil
}

func container(id, sandbox, name, image string, state runtimeapi.ContainerState, created int64) *runtimeapi.Container {
	return &runtimeapi.Container{Id: id, PodSandboxId: sandbox, Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image: &runtimeapi.ImageSpec{Image: image}, ImageRef: image, State: state, CreatedAt: created}
}

func TestOnlyImagesThatNobodyNeedsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRuntime{
			images: []*runtimeapi.Image{
				{Id: "used"}, {Id: "of-a-dead-one"}, {Id: "unused"}, {Id: "pause", RepoTags: []string{"pause:1"}}, {Id: "pinned", Pinned: true},
			},
			containers: []*runtimeapi.Container{
				container("1", "s", "a", "used", runtimeapi.ContainerState_CONTAINER_RUNNING, 1),
				container("2", "s", "b", "of-a-dead-one", runtimeapi.ContainerState_CONTAINER_EXITED, 1),
			},
		}
		g := &Garbage{Runtime: f, Images: f}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { g.Run(ctx); close(done) }()
		time.Sleep(2 * youth)
		synctest.Wait()
		f.images = append(f.images, &runtimeapi.Image{Id: "just-pulled"})
		if err := g.RemoveImages(ctx); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(f.removed, []string{"unused"}) {
			t.Errorf("removed %v, want the unused image only", f.removed)
		}
		cancel()
		<-done
	})
}

func TestTheLastDeadContainerStays(t *testing.T) {
	const dead, running = runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_RUNNING
	f := &fakeRuntime{containers: []*runtimeapi.Container{
		container("first", "s", "a", "i", dead, 1), container("second", "s", "a", "i", dead, 2), container("third", "s", "a", "i", running, 3),
		container("only", "s", "b", "i", dead, 1),
	}}
	if err := (&Garbage{Runtime: f, Images: f}).RemoveContainers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.removed, []string{"first", "second"}) {
		t.Errorf("removed %v, want those that have a successor", f.removed)
	}
}
