package live

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestWebhookThatIsGoneDelaysEvictions has the API server wait for a webhook for the longest time
// that it can be told to, and then evict the pod, as kubectl drain waits for it to do.
func TestWebhookThatIsGoneDelaysEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		api.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}})
		api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Late: 30 * time.Second} })
		r := &requests{api.Client()}
		answer := r.carryOut(t.Context(), execute.Evict{Namespace: "default", Name: "p", UID: api.Pods()[0].UID, Delete: true})
		if got := answer.(execute.Answered); got.Outcome != execute.OK || len(api.Pods()) != 0 {
			t.Errorf("answered %+v, and %d pods are left", got, len(api.Pods()))
		}
	})
}

// TestAPodOfANamespaceThatIsBeingDeletedIsWaitedFor: the API server refuses its eviction, as it
// refuses everything that is created there. That is no reason to give up the run, since the pod is
// deleted soon.
func TestAPodOfANamespaceThatIsBeingDeletedIsWaitedFor(t *testing.T) {
	err := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", nil)
	if got := outcome(err); got != execute.Refused {
		t.Errorf("a refusal counts as %v", got)
	}
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: v1.NamespaceTerminatingCause})
	if got := outcome(err); got != execute.Busy {
		t.Errorf("that the namespace is being deleted counts as %v, want %v", got, execute.Busy)
	}
}
