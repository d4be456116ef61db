"""The table of elementwise functions of mx.np. `_table` documents the format."""

ELEMENTWISE = """
abs(x, out=None, **ufunc) -> abs
>>> np.abs(np.array([-1, 2]))
array([1., 2.])

absolute(x, out=None, **ufunc) -> abs
>>> np.absolute(np.array([-1, 2]))
array([1., 2.])

fabs(x, out=None, **ufunc) -> abs
>>> np.fabs(np.array([-1.5, 2]))
array([1.5, 2. ])

negative(x, out=None, **ufunc) -> negative
>>> np.negative(np.array([1, -2]))
array([-1.,  2.])

reciprocal(x, out=None, **ufunc) -> reciprocal
>>> np.reciprocal(np.array([2, 4]))
array([0.5 , 0.25])

sign(x, out=None, **ufunc) -> sign
>>> np.sign(np.array([-3, 0, 5]))
array([-1.,  0.,  1.])

square(x, out=None, **ufunc) -> square
>>> np.square(np.array([-1, 3]))
array([1., 9.])

sqrt(x, out=None, **ufunc) -> sqrt
>>> np.sqrt(np.array([1, 4, 9]))
array([1., 2., 3.])

cbrt(x, out=None, **ufunc) -> cbrt
>>> np.cbrt(np.array([1, 8]))
array([1., 2.])

exp(x, out=None, **ufunc) -> exp
>>> np.exp(np.array([0, 1]))
array([1.       , 2.7182817])

expm1(x, out=None, **ufunc) -> expm1
>>> np.expm1(np.array([0, 1]))
array([0.       , 1.7182817])

log(x, out=None, **ufunc) -> log
>>> np.log(np.array([1, 2]))
array([0.       , 0.6931472])

log2(x, out=None, **ufunc) -> log2
>>> np.log2(np.array([1, 8]))
array([0., 3.])

log10(x, out=None, **ufunc) -> log10
>>> np.log10(np.array([1, 100]))
array([0., 2.])

log1p(x, out=None, **ufunc) -> log1p
>>> np.log1p(np.array([0, 1]))
array([0.       , 0.6931472])

sin(x, out=None, **ufunc) -> sin
>>> np.sin(np.array([0, 1]))
array([0.        , 0.84147096])

cos(x, out=None, **ufunc) -> cos
>>> np.cos(np.array([0, 1]))
array([1.       , 0.5403023])

tan(x, out=None, **ufunc) -> tan
>>> np.tan(np.array([0, 1]))
array([0.       , 1.5574077])

arcsin(x, out=None, **ufunc) -> arcsin
>>> np.arcsin(np.array([0, 1]))
array([0.       , 1.5707964])

arccos(x, out=None, **ufunc) -> arccos
>>> np.arccos(np.array([0, 1]))
array([1.5707964, 0.       ])

arctan(x, out=None, **ufunc) -> arctan
>>> np.arctan(np.array([0, 1]))
array([0.       , 0.7853982])

sinh(x, out=None, **ufunc) -> sinh
>>> np.sinh(np.array([0, 1]))
array([0.       , 1.1752012])

cosh(x, out=None, **ufunc) -> cosh
>>> np.cosh(np.array([0, 1]))
array([1.       , 1.5430806])

tanh(x, out=None, **ufunc) -> tanh
>>> np.tanh(np.array([0, 1]))
array([0.       , 0.7615942])

arcsinh(x, out=None, **ufunc) -> arcsinh
>>> np.arcsinh(np.array([0, 1]))
array([0.       , 0.8813736])

arccosh(x, out=None, **ufunc) -> arccosh
>>> np.arccosh(np.array([1, 2]))
array([0.      , 1.316958])

arctanh(x, out=None, **ufunc) -> arctanh
>>> np.arctanh(np.array([0, 0.5]))
array([0.        , 0.54930615])

degrees(x, out=None, **ufunc) -> degrees
>>> np.degrees(np.array([0, np.pi]))
array([  0., 180.])

rad2deg(x, out=None, **ufunc) -> degrees
>>> np.rad2deg(np.array([0, np.pi]))
array([  0., 180.])

radians(x, out=None, **ufunc) -> radians
>>> np.radians(np.array([0, 180]))
array([0.       , 3.1415927])

deg2rad(x, out=None, **ufunc) -> radians
>>> np.deg2rad(np.array([0, 180]))
array([0.       , 3.1415927])

rint(x, out=None, **ufunc) -> _rint_even
>>> np.rint(np.array([-1.5, 0.5, 2.4]))
array([-2.,  0.,  2.])

fix(x, out=None, **ufunc) -> fix
>>> np.fix(np.array([-1.5, 2.7]))
array([-1.,  2.])

trunc(x, out=None, **ufunc) -> trunc
>>> np.trunc(np.array([-1.5, 2.7]))
array([-1.,  2.])

ceil(x, out=None, **ufunc) -> ceil
>>> np.ceil(np.array([-1.5, 2.2]))
array([-1.,  3.])

floor(x, out=None, **ufunc) -> floor
>>> np.floor(np.array([-1.5, 2.7]))
array([-2.,  2.])

isnan(x, out=None, **ufunc) -> _contrib_isnan
>>> np.isnan(np.array([1, np.nan]))
array([False,  True])

isinf(x, out=None, **ufunc) -> _contrib_isinf
>>> np.isinf(np.array([1, -np.inf]))
array([False,  True])

isfinite(x, out=None, **ufunc) -> _contrib_isfinite
>>> np.isfinite(np.array([1, np.inf, np.nan]))
array([ True, False, False])

isposinf(x, out=None, **ufunc) -> _equal_scalar(scalar='inf')
True for positive infinity.
>>> np.isposinf(np.array([np.inf, -np.inf]))
array([ True, False])

isneginf(x, out=None, **ufunc) -> _equal_scalar(scalar='-inf')
True for negative infinity.
>>> np.isneginf(np.array([np.inf, -np.inf]))
array([False,  True])

logical_not(x, out=None, **ufunc) -> logical_not
>>> np.logical_not(np.array([0, 2]))
array([ True, False])

bitwise_not(x, out=None, **ufunc) -> _bitwise_not
>>> np.bitwise_not(np.array([0, 5], dtype='int32'))
array([-1, -6], dtype=int32)

invert(x, out=None, **ufunc) -> _bitwise_not
>>> np.invert(np.array([True, False], dtype='bool'))
array([False,  True])

add(x1, x2, out=None, **ufunc) -> broadcast_add
>>> np.add(np.array([1, 2]), 3)
array([4., 5.])

subtract(x1, x2, out=None, **ufunc) -> broadcast_sub
>>> np.subtract(np.array([1, 2]), 3)
array([-2., -1.])

multiply(x1, x2, out=None, **ufunc) -> broadcast_mul
>>> np.multiply(np.array([1, 2]), np.array([[3], [4]]))
array([[3., 6.],
       [4., 8.]])

divide(x1, x2, out=None, **ufunc) -> broadcast_div
The quotient of two arrays, with broadcasting; float32 for integers and bools.
>>> np.divide(np.array([1, 2]), 4)
array([0.25, 0.5 ])

true_divide(x1, x2, out=None, **ufunc) -> broadcast_div
The quotient of two arrays, with broadcasting; float32 for integers and bools.
>>> np.true_divide(3, np.array([1, 2]))
array([3. , 1.5])

mod(x1, x2, out=None, **ufunc) -> broadcast_mod
>>> np.mod(np.array([5, -5]), 3)
array([2., 1.])

remainder(x1, x2, out=None, **ufunc) -> broadcast_mod
>>> np.remainder(np.array([5, -5]), 3)
array([2., 1.])

power(x1, x2, out=None, **ufunc) -> broadcast_power
>>> np.power(2, np.array([1, 3]))
array([2., 8.])

maximum(x1, x2, out=None, **ufunc) -> broadcast_maximum
>>> np.maximum(np.array([1, 5]), 3)
array([3., 5.])

minimum(x1, x2, out=None, **ufunc) -> broadcast_minimum
>>> np.minimum(np.array([1, 5]), np.array([3, 4]))
array([1., 4.])

hypot(x1, x2, out=None, **ufunc) -> broadcast_hypot
>>> np.hypot(np.array([3, 5]), np.array([4, 12]))
array([ 5., 13.])

arctan2(x1, x2, out=None, **ufunc) -> _arctan2
>>> np.arctan2(np.array([1, -1]), 1)
array([ 0.7853982, -0.7853982])

copysign(x1, x2, out=None, **ufunc) -> _copysign
>>> np.copysign(np.array([1, 2]), -0.0)
array([-1., -2.])

ldexp(x1, x2, out=None, **ufunc) -> _ldexp
>>> np.ldexp(np.array([1, 3]), np.array([4, 1]))
array([16.,  6.])

lcm(x1, x2, out=None, **ufunc) -> _lcm
>>> np.lcm(np.array([4, 6], dtype='int32'), 10)
array([20, 30], dtype=int32)

bitwise_and(x1, x2, out=None, **ufunc) -> _bitwise_and
>>> np.bitwise_and(np.array([12, 7], dtype='int32'), 10)
array([8, 2], dtype=int32)

bitwise_or(x1, x2, out=None, **ufunc) -> _bitwise_or
>>> np.bitwise_or(np.array([12, 7], dtype='int32'), 10)
array([14, 15], dtype=int32)

bitwise_xor(x1, x2, out=None, **ufunc) -> _bitwise_xor
>>> np.bitwise_xor(np.array([12, 7], dtype='int32'), 10)
array([ 6, 13], dtype=int32)

equal(x1, x2, out=None, **ufunc) -> broadcast_equal
>>> np.equal(np.array([1, 2]), 2)
array([False,  True])

not_equal(x1, x2, out=None, **ufunc) -> broadcast_not_equal
>>> np.not_equal(np.array([1, 2]), 2)
array([ True, False])

greater(x1, x2, out=None, **ufunc) -> broadcast_greater
>>> np.greater(np.array([1, 2]), 1)
array([False,  True])

greater_equal(x1, x2, out=None, **ufunc) -> broadcast_greater_equal
>>> np.greater_equal(np.array([1, 2]), 2)
array([False,  True])

less(x1, x2, out=None, **ufunc) -> broadcast_lesser
>>> np.less(np.array([1, 2]), 2)
array([ True, False])

less_equal(x1, x2, out=None, **ufunc) -> broadcast_lesser_equal
>>> np.less_equal(2, np.array([1, 2]))
array([False,  True])

logical_and(x1, x2, out=None, **ufunc) -> broadcast_logical_and
>>> np.logical_and(np.array([0, 2]), np.array([3, 4]))
array([False,  True])

logical_or(x1, x2, out=None, **ufunc) -> broadcast_logical_or
>>> np.logical_or(np.array([0, 2]), np.array([0, 4]))
array([False,  True])

logical_xor(x1, x2, out=None, **ufunc) -> broadcast_logical_xor
>>> np.logical_xor(np.array([0, 2]), np.array([3, 4]))
array([ True, False])
"""
