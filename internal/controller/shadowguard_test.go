// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestShadowReportsAreForThisMachine verifies that only local requests get the reports, because the
// plain port is unauthenticated and the reports contain names.
func TestShadowReportsAreForThisMachine(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/shadow", nil)
	r.RemoteAddr = "10.0.0.7:4711"
	w := httptest.NewRecorder()
	(&Controller{}).serveShadow(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("another machine gets %d: %s", w.Code, w.Body)
	}
}
