package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-k8s/berth/test/internal/process"
)

// bound watches the pods of a namespace that have a node: of each the API server sends one event,
// when it gets it.
type bound struct {
	watch watch.Interface
}

func (b *bench) watchBound(ctx context.Context, namespace, version string) (*bound, error) {
	w, err := b.watchPods(ctx, namespace, version, fields.OneTermNotEqualSelector("spec.nodeName", "").String())
	if err != nil {
		return nil, err
	}
	return &bound{w}, nil
}

// watchPods watches a namespace, and goes on where it was if the watch ends: a busy API server ends
// those that are behind.
func (b *bench) watchPods(ctx context.Context, namespace, version, selector string) (watch.Interface, error) {
	return watchtools.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return b.client.CoreV1().Pods(namespace).Watch(ctx, options)
		},
	})
}

func (w *bound) stop() { w.watch.Stop() }

// errIdle says that no pod was bound for a long time.
var errIdle = errors.New("no pod was bound any more")

// nextBound returns the name of the next pod that is bound.
func (w *bound) nextBound(ctx context.Context, scheduler *process.Process, patience time.Duration) (string, error) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()

	for {
		select {
		case e, ok := <-w.watch.ResultChan():
			switch {
			case !ok:
				return "", errors.New("the watch on bound pods ended")
			case e.Type == watch.Error:
				return "", apierrors.FromObject(e.Object)
			case e.Type == watch.Added:
				if pod, is := e.Object.(*v1.Pod); is {
					return pod.Name, nil
				}
			}

		case <-scheduler.Ended:
			return "", scheduler.Gone()
		case <-ctx.Done():
			return "", ctx.Err()
		case <-timeout.C:
			return "", fmt.Errorf("%w for %v", errIdle, patience)
		}
	}
}
