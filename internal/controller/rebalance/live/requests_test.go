package live

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
)

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
