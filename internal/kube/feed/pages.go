// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"context"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/quantity"
)

// mostOfPage bounds the encoded size of a page with several objects. The API limits pages only by
// the number of objects, and an object may have a megabyte and a half, so a single page of a
// tenant's objects could exhaust the memory of a component.
const mostOfPage = 16 << 20

// errLargePage is returned for a page larger than mostOfPage, which was not read to its end.
var errLargePage = errors.New("the page is too large: it must be requested with fewer objects")

// ReadInto reads the response to a request for a page of at most limit objects into a list. If
// limit is greater than one, it returns errLargePage for a page larger than mostOfPage; the caller
// must then request fewer objects. Pages of a single object, and lists without pages (limit 0), are
// read whatever their size. The unused fields of objects in the protobuf format are not decoded.
func ReadInto(ctx context.Context, request *rest.Request, limit int64, list runtime.Object, unused Fields) error {
	return readInto(ctx, request, limit, list, unused, new(bytes.Buffer))
}

// readInto is ReadInto with a buffer that can be reused.
func readInto(ctx context.Context, request *rest.Request, limit int64, list runtime.Object, unused Fields, text *bytes.Buffer) error {
	if err := fetch(ctx, request, limit, text); err != nil {
		return err
	}
	return decodeList(text, unused, list)
}

// fetch reads the response to a request into a buffer.
func fetch(ctx context.Context, request *rest.Request, limit int64, text *bytes.Buffer) error {
	body, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()

	bounded := io.Reader(body)
	if limit > 1 {
		bounded = io.LimitReader(body, mostOfPage+1)
	}
	text.Reset()
	if _, err := text.ReadFrom(bounded); err != nil {
		return err
	}
	if limit > 1 && text.Len() > mostOfPage {
		return errLargePage
	}
	return nil
}

func decodeList(text *bytes.Buffer, unused Fields, list runtime.Object) error {
	if unused != nil {
		unused = Fields{2: unused} // field 2 of a list holds the items
	}
	_, err := decode(text.Bytes(), unused, list)
	return err
}

// Asking is a function that requests a page of a list.
type Asking func(context.Context, metav1.ListOptions) (runtime.Object, error)

// Pages requests a list page by page, and calls see with each object. An oversized page is
// requested again with a quarter of the objects, and the limit is doubled for each following page,
// up to the original one. Pages returns the version of the list. If a page fails, begun reports
// whether other pages preceded it.
//
// For example, if the limit is 500 and the third page is too large, this page is requested again
// with 125 objects, the next page with 250, and the following pages with 500.
func Pages(ctx context.Context, options metav1.ListOptions, ask Asking, see func(runtime.Object)) (version string, begun bool, err error) {
	for most := options.Limit; ; options.Limit = min(2*options.Limit, most) {
		page, err := ask(ctx, options)
		for errors.Is(err, errLargePage) && options.Limit > 1 {
			options.Limit = max(1, options.Limit/4)
			page, err = ask(ctx, options)
		}
		if err != nil {
			return "", options.Continue != "", err
		}

		list, err := meta.ListAccessor(page)
		if err == nil {
			err = meta.EachListItem(page, func(o runtime.Object) error { see(quantity.BoundAll(o)); return nil })
		}
		if err != nil {
			return "", false, err
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return list.GetResourceVersion(), true, nil
		}
	}
}

// Ahead returns a function that requests the pages of a list in order, as [Pages] does. The next
// page is read while a page in the protobuf format is decoded and processed. The unused fields of
// its objects are not decoded. If the list is abandoned, its context must be canceled.
func Ahead(get func(metav1.ListOptions) *rest.Request, unused Fields, newList func() runtime.Object) Asking {
	text, following := new(bytes.Buffer), new(bytes.Buffer)
	var next chan error // result of reading the following page into text; nil if it was not requested
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		var err error
		if next != nil {
			err, next = <-next, nil
		} else {
			err = fetch(ctx, get(o), o.Limit, text)
		}
		if err != nil {
			return nil, err
		}

		page := text
		if o.Continue = continueOf(page.Bytes()); o.Continue != "" {
			text, following = following, text
			result, into := make(chan error, 1), text
			go func() { result <- fetch(ctx, get(o), o.Limit, into) }()
			next = result
		}
		list := newList()
		return list, decodeList(page, unused, list)
	}
}

// continueOf returns the token of the following page: field 3 of field 1 of a list. It is empty for
// the last page, and for pages in JSON.
func continueOf(page []byte) (token string) {
	Fields{2: {1: {3: nil}}}.walkObject(page, func(field []byte, in bool) {
		if in {
			_, _, tag := protowire.ConsumeTag(field)
			value, _ := protowire.ConsumeBytes(field[tag:])
			token = string(value)
		}
	})
	return token
}
