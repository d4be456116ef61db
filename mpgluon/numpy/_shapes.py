"""The table of reductions, orders and changes of shape of mx.np. `_table` documents the format."""

SHAPES = """
sum(a, axis?2=None, dtype:^=None, keepdims=False, initial:_=None, out=None, where:_=True)
-> sum | _kept_sum
The sum over the given axes. bool becomes int64; other dtypes are kept.
>>> np.sum(np.array([[1, 2], [3, 4]]))
array(10.)
>>> np.sum(np.array([[1, 2], [3, 4]]), axis=1)
array([3., 7.])

prod(a, axis?2=None, dtype:^=None, out=None, keepdims=False, initial:_=None, where:_=True)
-> prod | _kept_prod
The product over the given axes. bool becomes int64; other dtypes are kept.
>>> np.prod(np.array([[1, 2], [3, 4]]), axis=1)
array([ 2., 12.])

product(a, axis?2=None, dtype:^=None, out=None, keepdims=False, initial:_=None, where:_=True)
-> prod | _kept_prod
The product over the given axes, as `prod`.
>>> np.product(np.array([[1, 2], [3, 4]]), axis=1)
array([ 2., 12.])

mean(a, axis?2=None, dtype:^=None, out=None, keepdims=False, where:_=True)
-> mean | _kept_mean
The mean over the given axes. Integers and bool become float32.
>>> np.mean(np.array([[1, 2], [3, 4]]), axis=0)
array([2., 3.])

max(a, axis?2=None, keepdims=False, out=None, initial:_=None, where:_=True)
-> max | _kept_max
>>> np.max(np.array([[1, 5], [4, 2]]), axis=1)
array([5., 4.])

amax(a, axis?2=None, keepdims=False, out=None, initial:_=None, where:_=True)
-> max | _kept_max
>>> np.amax(np.array([[1, 5], [4, 2]]), axis=1)
array([5., 4.])

min(a, axis?2=None, keepdims=False, out=None, initial:_=None, where:_=True)
-> min | _kept_min
>>> np.min(np.array([[1, 5], [4, 2]]), axis=1)
array([1., 2.])

amin(a, axis?2=None, keepdims=False, out=None, initial:_=None, where:_=True)
-> min | _kept_min
>>> np.amin(np.array([[1, 5], [4, 2]]), axis=1)
array([1., 2.])

argmax(a, axis?2=None, out=None, *, keepdims=False)
-> argmax | _located_max
The index of the largest element along a dimension, the first of equal ones, as int64.
>>> np.argmax(np.array([[1, 5], [4, 2]]), axis=1)
array([1, 0], dtype=int64)

argmin(a, axis?2=None, out=None, *, keepdims=False)
-> argmin | _located_min
The index of the smallest element along a dimension, the first of equal ones, as int64.
>>> np.argmin(np.array([[1, 5], [4, 2]]), axis=1)
array([0, 1], dtype=int64)

cumsum(a, axis=None, dtype=None, out=None) -> _np_cumsum
>>> np.cumsum(np.array([[1, 2], [3, 4]]), axis=1)
array([[1., 3.],
       [3., 7.]])

sort(a, axis=-1, kind:~=None, order:_=None) -> sort
>>> np.sort(np.array([3, 1, 2]))
array([1., 2., 3.])

argsort(a, axis=-1, kind:~=None, order:_=None) -> argsort(dtype='int64')
>>> np.argsort(np.array([3, 1, 2]))
array([1, 2, 0], dtype=int64)

reshape(a, newshape, order:_='C', out=None) -> _reshape_numpy
>>> np.reshape(np.array([1, 2, 3, 4]), (2, -1))
array([[1., 2.],
       [3., 4.]])

transpose(a, axes=None) -> transpose
>>> np.transpose(np.array([[1, 2], [3, 4]]))
array([[1., 3.],
       [2., 4.]])

swapaxes(a, axis1:dim1, axis2:dim2) -> SwapAxis
>>> np.swapaxes(np.zeros((2, 3, 4)), 0, 2).shape
(4, 3, 2)

squeeze(a, axis=None, out=None) -> squeeze
>>> np.squeeze(np.array([[1, 2]]), axis=0)
array([1., 2.])

expand_dims(a, axis) -> expand_dims
>>> np.expand_dims(np.array([1, 2]), axis=0)
array([[1., 2.]])

broadcast_to(array, shape) -> broadcast_to
The array repeated along its axes of size 1 to the given shape; -2 keeps the size of an axis.
>>> np.broadcast_to(np.array([1, 2]), (2, 2))
array([[1., 2.],
       [1., 2.]])

flip(m, axis?=None, out=None) -> reverse | _flip
>>> np.flip(np.array([1, 2, 3]))
array([3., 2., 1.])

tile(A, reps) -> tile
>>> np.tile(np.array([1, 2]), 2)
array([1., 2., 1., 2.])

repeat(a, repeats, axis=None) -> repeat
>>> np.repeat(np.array([1, 2]), 2)
array([1., 1., 2., 2.])

concatenate(seq, axis:dim?=0, out=None) -> Concat | _concatenate
Joins arrays along a dimension; None joins the flattened arrays.
>>> np.concatenate([np.array([1, 2]), np.array([3])])
array([1., 2., 3.])

stack(arrays, axis=0, out=None) -> stack
>>> np.stack([np.array([1, 2]), np.array([3, 4])], axis=1)
array([[1., 3.],
       [2., 4.]])

clip(a, a_min?, a_max?, out=None) -> clip | _clip
The values clipped to the range from a_min to a_max, which may be arrays. One may be None.
>>> np.clip(np.array([-1, 0.5, 2]), 0, 1)
array([0. , 0.5, 1. ])

take(a, indices, axis?=None, mode='raise', out=None) -> take | _take
The elements or slices with the given indices along a dimension; None indexes the flattened array.
>>> np.take(np.array([[1, 2], [3, 4]]), np.array([1, 0]), axis=0)
array([[3., 4.],
       [1., 2.]])

diag(array, k=0) -> diag
>>> np.diag(np.array([1, 2]))
array([[1., 0.],
       [0., 2.]])

copy(a, out=None) -> _copy
A copy of the array.
>>> np.copy(np.array([1, 2]))
array([1., 2.])

dot(a, b?2, out=None) -> dot | _dot
The sum of products over the last dimension of a and the second to last of b. Numbers and arrays
without dimensions are multiplied.
>>> np.dot(np.array([[1, 2], [3, 4]]), np.array([1, 1]))
array([3., 7.])

full_like(a, fill_value, dtype=None, order:_='C', ctx:~=None, out=None) -> _full_like
An array of one value with the shape of a, and with its dtype unless another is given.
>>> np.full_like(np.array([1, 2]), 3)
array([3., 3.])

zeros_like(a, dtype=None, order:_='C', ctx:~=None, out=None) -> _full_like(fill_value=0)
An array of zeros with the shape of a, and with its dtype unless another is given.
>>> np.zeros_like(np.array([1, 2]))
array([0., 0.])

ones_like(a, dtype=None, order:_='C', ctx:~=None, out=None) -> _full_like(fill_value=1)
An array of ones with the shape of a, and with its dtype unless another is given.
>>> np.ones_like(np.array([1, 2]))
array([1., 1.])
"""
